"""Starts and stops the recording of collectives in this process. The engine records, and writes the file."""

from __future__ import annotations

import os
from pathlib import Path

from tfdist import config, errors
from tfdist.native import library
from tfdist.system.local_path import local_path


def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records from now on what each collective does and when, in a file of its own for each rank.

    You need it to see where the time of a job goes: open the file in chrome://tracing or ui.perfetto.dev, or hand all
    of them to `tfdist timeline merge` and `tfdist timeline summary`. `tfdistrun --timeline-filename FILE` records from
    `init` on. Every rank calls it, as a collective; the clocks of the ranks are compared then.

    Args:
        path: The file, with the rank put before the suffix: "run.json" is "run.0.json" on rank 0. Missing folders are
            made. A file that is there is replaced; in an elastic job, where all ranks may have been started anew, it is
            kept, and "run.0.2.json" is the next.
        mark_cycles: Whether an instant marks the moments when all ranks have come to a collective.

    Raises:
        ConfigError: If a timeline is recorded already, or this is the only rank and cannot make the file.
        MismatchError: On every rank, if some cannot make their files, or call another collective.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    tfdist.start_timeline("run.json")
    model.fit(dataset, steps_per_epoch=20)
    tfdist.stop_timeline()
    ```
    """
    text = os.fspath(path)
    if not text or text.endswith(os.sep):
        raise errors.ConfigError(f"a timeline is written to a file; received {text!r}. Name one, such as 'run.json'.")
    rank = library.ask("rank", "start_timeline")
    place = config.launcher_place()  # unique in the job, also where init(comm=...) divides it
    whole = local_path(path, "the file of a timeline").absolute()
    file = file_of(whole, rank if place is None else place[0], keep=config.is_elastic())
    library.call("tfdist_timeline_start", os.fsencode(file), int(mark_cycles))


def stop_timeline() -> None:
    """Ends the recording of this rank; its file is complete then. Does nothing where none is recorded.

    `tfdist.shutdown()`, and the end of the script, do so too.

    Raises:
        NotInitializedError: Before `tfdist.init()`.
    """
    library.ask("rank", "stop_timeline")
    library.load().tfdist_timeline_stop()


def file_of(path: Path, rank: int, keep: bool = False) -> Path:
    """The file of a rank.

    Args:
        path: As `start_timeline` gets it.
        rank: The rank in the job.
        keep: Whether a file that is there stays, and the next free name is taken.
    """
    suffix = path.suffix or ".json"
    file = path.with_name(f"{path.stem}.{rank}{suffix}")
    number = 2
    while keep and file.exists():
        file = path.with_name(f"{path.stem}.{rank}.{number}{suffix}")
        number += 1
    return file
