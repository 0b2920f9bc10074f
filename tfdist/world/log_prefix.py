"""What every line of the logger "tfdist" begins with: the name, and in a job of several processes the rank."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfdist import config

_places: list[Callable[[], tuple[int, int] | None]] = [config.launcher_place]


class _Prefix(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = f"{text()}: {record.msg}"
        return True


def text() -> str:
    """As in "tfdist rank 1"; "tfdist" in a process that is alone."""
    rank, size = _places[-1]() or (0, 1)
    return f"tfdist rank {rank}" if size > 1 else "tfdist"


def install() -> None:
    """Once in a process."""
    logging.getLogger("tfdist").addFilter(_Prefix())


def ask(place: Callable[[], tuple[int, int] | None]) -> None:
    """Takes rank and size from `place`, which knows more than the launcher's variables."""
    _places.append(place)
