"""Prints the Python stacks of all threads of this process when it receives SIGUSR1."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import BinaryIO

from tfdist import errors
from tfdist.system.local_path import local_path

_STATUS = Path("/proc/self/status")
_STDERR = 2
# What was installed, kept for the life of the process because the file must stay open.
_installed: list[BinaryIO | int] = []


def install(folder: str) -> bool:
    """Makes this process print its stacks on SIGUSR1, unless it already handles the signal.

    Args:
        folder: Where to append the stacks, to the file `stacks-HOST-PID.txt`; empty prints them to stderr.

    Returns:
        Whether SIGUSR1 prints stacks; False if the script has its own handler, or the signal is ignored.

    Raises:
        ConfigError: If the file cannot be written.

    Example:

    ```python
    stack_dump.install("")
    os.kill(os.getpid(), signal.SIGUSR1)  # "Thread 0x00007f... (most recent call first): ..."
    ```
    """
    if _installed:
        return True
    if _is_handled():
        return False
    target = _open(local_path(folder, "the folder of stacks")) if folder else _STDERR
    faulthandler.register(signal.SIGUSR1, file=target, all_threads=True)
    _installed.append(target)
    return True


def _is_handled() -> bool:
    """Asks the kernel whether the signal is handled: Python does not see handlers of C code or faulthandler."""
    bit = 1 << (signal.SIGUSR1 - 1)
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return any(int(fields[name], 16) & bit for name in ("SigCgt", "SigIgn"))


def _open(folder: Path) -> BinaryIO:
    path = folder / f"stacks-{os.uname().nodename}-{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Other users may be able to write to the folder: do not follow their links, or block on their pipes.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
    except OSError as error:
        raise errors.ConfigError(
            f"the stacks of this process cannot be written to {path}: {error.strerror}. Set TFDIST_STACK_DUMP_DIR to a "
            "folder that this process may write to, or to none for stderr."
        ) from error
