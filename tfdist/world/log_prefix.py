"""The prefix of every line of the logger "tfdist": the name, and in a job of several processes the rank."""

from __future__ import annotations

import logging

from tfdist.system.rank import job_place
from tfdist.world.session import session


def text() -> str:
    """The prefix, such as "tfdist rank 1"; "tfdist" in a world of one."""
    rank, size = session.place or job_place.of_job() or (0, 1)
    return f"tfdist rank {rank}" if size > 1 else "tfdist"


def install() -> None:
    """Installs the prefix, once per process."""
    logging.getLogger("tfdist").addFilter(_prefixed)


def _prefixed(record: logging.LogRecord) -> bool:
    record.msg = f"{text()}: {record.msg}"
    return True
