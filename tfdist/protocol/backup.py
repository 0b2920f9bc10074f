"""Saves the newest commits to a place that outlives their job: a folder of a disk, or of an object store.

Supervisors and launchers do it, and these may run without installed packages. So a process of its own opens a store:

    python -m tfdist.protocol.backup keep s3://bucket/backup /dev/shm/tfdist-0123456789abcdef
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.errors import StoreError
from tfdist.protocol.commit_file import COMMIT
from tfdist.system.local_path import address_of
from tfdist.system.whole_file import DamagedFileError

if TYPE_CHECKING:
    from tfdist.storage.shelf import Shelf, Volume

_ALL = 1 << 30
# The launcher waits for a minute.
_STORE_S = 55.0


def keep(commits: Path, backup: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Copies the newest complete commit of each training from memory to a disk or a store.

    Args:
        commits: Where the commits are.
        backup: The target folder, created if needed, or its address. An existing commit of a training is replaced by a
            newer one, and kept if it is newer itself.
        environment: Has the credentials of a store; default `os.environ`.

    Returns:
        The names of the commits that are now in `backup`.

    Raises:
        OSError: If one cannot be written. Existing files are unchanged then.
    """
    if address_of(backup) is not None:
        names: list[str] = json.loads(_elsewhere(environment, "keep", backup, str(commits)))
        return names
    return _keep_newest(commits, open_backup(backup), Path(backup))


def drop(backup: str, environment: Mapping[str, str] | None = None) -> None:
    """Removes all commits and partly written files: the training has ended. Raises OSError."""
    if address_of(backup) is not None:
        _elsewhere(environment, "drop", backup)
        return
    _clear(open_backup(backup))


def open_backup(backup: str) -> Shelf:
    """The commits in a folder or at an address.

    Raises:
        ConfigError: If nothing that is installed knows the scheme of the address.
    """
    # Supervisors start faster without it.
    from tfdist.storage.shelf import open_shelf

    return open_shelf(backup, COMMIT, "--backup-dir")


def _keep_newest(commits: Path, backup: Shelf, folder: Path | None = None) -> list[str]:
    kept: dict[int, str] = {}
    for commit in COMMIT.newest_first(commits):
        training, _ = commit.numbers
        if training in kept:
            continue
        try:
            data = COMMIT.contents(commit.path.read_bytes())
        except (DamagedFileError, OSError):
            continue  # the previous one may be complete
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [each for each in backup.newest_first() if each.numbers[0] == training]
        kept[training] = commit.path.name
        if any(each.numbers >= commit.numbers and _is_whole(each) for each in there):
            continue
        backup.write(commit.numbers, [data], _ALL)
        for old in there:
            if old.numbers < commit.numbers:
                backup.remove(old)
    return list(kept.values())


def _clear(backup: Shelf) -> None:
    for commit in backup.newest_first():
        backup.remove(commit)
    backup.tidy()


def _is_whole(commit: Volume) -> bool:
    try:
        commit.read()
    except StoreError:
        raise
    except (DamagedFileError, OSError):
        return False
    return True


def _elsewhere(environment: Mapping[str, str] | None, *words: str) -> str:
    """Lets another process do it; returns what that prints. Raises OSError."""
    command = [sys.executable, "-m", "tfdist.protocol.backup", *words]
    # This process may have found tfdist without installed packages.
    root = str(Path(__file__).resolve().parents[2])
    variables = dict(os.environ if environment is None else environment)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [variables.get("PYTHONPATH"), root]))
    try:
        done = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_STORE_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{words[1]} did not take the commit within {_STORE_S:g} s") from None
    if done.returncode:
        raise OSError(done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}")
    return done.stdout


def _main(action: str, address: str, commits: str = "") -> None:
    backup = open_backup(address)
    if action == "drop":
        _clear(backup)
        return
    print(json.dumps(_keep_newest(Path(commits), backup)))  # noqa: T201  (for who has started this)


if __name__ == "__main__":
    try:
        _main(*sys.argv[1:])
    except OSError as problem:
        sys.exit(str(problem))
