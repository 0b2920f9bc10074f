"""What every line of the logger "tfdist" begins with: the name, and in a job of several processes the rank."""

from __future__ import annotations

import logging

from tfdist import config
from tfdist.world.session import session


def text() -> str:
    """As in "tfdist rank 1"; "tfdist" in a process that is alone."""
    rank, size = session.place or config.launcher_place() or (0, 1)
    return f"tfdist rank {rank}" if size > 1 else "tfdist"


def install() -> None:
    """Once in a process."""
    logging.getLogger("tfdist").addFilter(_prefixed)


def _prefixed(record: logging.LogRecord) -> bool:
    record.msg = f"{text()}: {record.msg}"
    return True
