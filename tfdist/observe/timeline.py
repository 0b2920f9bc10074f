"""Starts and stops the recording of collectives in this process. The engine records and writes the file."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from tfdist import config, errors
from tfdist.native import library
from tfdist.storage import mirror, reading
from tfdist.system.local_path import address_of, local_path
from tfdist.system.rank import job_place


def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts recording what each collective does and when, in one file per rank.

    You need it to see where the time of a job goes: open a file in chrome://tracing or ui.perfetto.dev, or pass all of
    them to `tfdist timeline merge` and `tfdist timeline summary`. `tfdistrun --timeline-filename FILE` records from
    `init` on. It is a collective, so every rank must call it; it compares the clocks of the ranks.

    Args:
        path: The file, or an address in an object store such as "s3://bucket/run.json", to which a copy goes every
            `TFDIST_UPLOAD_SECONDS` and at the end. The rank is put before the suffix: "run.json" becomes "run.0.json"
            on rank 0. Missing folders are created. An existing file is replaced; but in an elastic job, where all ranks
            may have been restarted, it is kept, and "run.0.2.json" is the next.
        mark_cycles: Whether to mark the moments when all ranks have reached a collective.

    Raises:
        ConfigError: If a timeline is already being recorded, or this is the only rank and cannot create the file.
        MismatchError: On every rank, if some cannot create their files, or call another collective.
        NotInitializedError: Before `tfdist.init()`.
        StoreError: On the ranks that cannot write to the store.

    Example:

    ```python
    tfdist.start_timeline("run.json")
    model.fit(dataset, steps_per_epoch=20)
    tfdist.stop_timeline()
    ```
    """
    text = os.fspath(path)
    if not text or text.endswith(os.sep):
        raise errors.ConfigError(f"start_timeline needs the name of a file, such as 'run.json'; received {text!r}.")
    rank = library.ask("rank", "start_timeline")
    place = job_place.of_job()  # unique in the job, even if init(comm=...) splits it
    number = rank if place is None else place[0]
    address = address_of(path)
    if address is None:
        file = file_of(local_path(path, "the file of a timeline").absolute(), number, keep=config.is_elastic())
        library.call("tfdist_timeline_start", os.fsencode(file), int(mark_cycles))
        return
    try:
        file, failure = _file_in_store(address, number), None
    except errors.TfdistError as error:  # the others learn it from the collective: this file cannot be made
        file, failure = Path(os.devnull, "timeline"), error
    try:
        library.call("tfdist_timeline_start", os.fsencode(file), int(mark_cycles))
    except errors.TfdistError as error:
        raise failure or error from None


def stop_timeline() -> None:
    """Stops the recording of this rank and completes its file. Does nothing if none is running.

    `tfdist.shutdown()` and the end of the script do so too.

    Raises:
        NotInitializedError: Before `tfdist.init()`.
    """
    library.ask("rank", "stop_timeline")
    library.load().tfdist_timeline_stop()
    mirror.upload_all()


def _file_in_store(address: str, rank: int) -> Path:
    """The file of a rank, which is put into the store at this address."""
    folder, name = reading.split(address)
    copy = mirror.of(folder)
    taken = copy.names() if config.is_elastic() else set()
    return file_of(copy.folder / name, rank, keep=config.is_elastic(), taken=taken)


def file_of(path: Path, rank: int, keep: bool = False, taken: Collection[str] = ()) -> Path:
    """The file of a rank.

    Args:
        path: As passed to `start_timeline`.
        rank: The rank in the job.
        keep: Whether to keep existing files and use the next free name.
        taken: Names that are not free, besides those of existing files.
    """
    suffix = path.suffix or ".json"
    file = path.with_name(f"{path.stem}.{rank}{suffix}")
    number = 2
    while keep and (file.exists() or file.name in taken):
        file = path.with_name(f"{path.stem}.{rank}.{number}{suffix}")
        number += 1
    return file
