"""Warns if a script and the way it was started disagree about elastic training; once per process, on rank 0."""

from __future__ import annotations

import logging

from tfdist import config
from tfdist.system.rank import job_place
from tfdist.world import runtime
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")


def need_elastic_job(piece: str) -> None:
    """Warns if a lost rank ends the job although the script uses elastic training. Needs `tfdist.init`.

    Args:
        piece: The code that the script uses.
    """
    if not config.is_elastic() and job_place.is_rank():
        _warn(
            f"the script uses {piece}, but the job is not elastic, so a lost rank will end it. Start it with "
            f"--elastic: tfdistrun -np {runtime.size()} --elastic python train.py"
        )


def need_elastic_script(line: str) -> None:
    """Warns if a lost rank ends the job although it was started as an elastic one. Needs `tfdist.init`.

    Args:
        line: The line of the script that creates the callback.
    """
    if config.is_elastic():
        _warn(
            "the job was started with tfdistrun --elastic, but DataParallel was made without elastic=True, so a lost "
            f"rank will end it. Write DataParallel(elastic=True) in {line}"
        )


def need_loop() -> None:
    """Warns if a lost rank ends the job although it was started as an elastic one, since it trains outside of `run`."""
    if config.is_elastic():
        _warn(
            "the job was started with tfdistrun --elastic, but trains outside of a function of hvd.elastic.run, so a "
            "lost rank will end it. See docs/torch.md, Elastic training."
        )


def _warn(text: str) -> None:
    if runtime.rank() == 0 and not session.warned_of_elastic:
        session.warned_of_elastic = True
        _logger.warning("%s", text)
