"""Tells that the ranks train on their own: nobody has added DataParallel, or made PyTorch's optimizer distributed."""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system import after_import
from tfdist.system.rank import job_place
from tfdist.world import fit_hook
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_WITH_KERAS = (
    "the data was sharded, but no gradient was ever reduced: each rank trained on its own, on its shard only. Add the "
    "callback: model.fit(..., callbacks=[tfdist.callbacks.DataParallel()])"
)
_WITH_PYTORCH = (
    "parameters were given to all ranks, but no gradient was ever reduced: if this job has trained, each rank did so "
    "on its own. Make the optimizer distributed: optimizer = hvd.DistributedOptimizer(optimizer)"
)
_NEVER_ALIKE = (
    "gradients were averaged over the ranks, but nothing has made sure that the weights are the same: if the ranks "
    "began with different ones, each has trained a model of its own. Call tfdist.broadcast_variables(model.weights, "
    "root_rank=0) before the first step; or tfdist.check_equal(model), if each rank makes the same."
)
_WITHOUT_EXCHANGE = (
    "model.fit has trained a model of its own on each of the {size} ranks: they have exchanged nothing. Give each rank "
    "its part of the data, and add the callback: dataset = tfdist.shard(dataset); model.fit(dataset, "
    "callbacks=[tfdist.callbacks.DataParallel()])"
)


def watch_fit() -> None:
    """Called when tfdist is imported: a `fit` of a process without collectives is told when it exits, on rank 0."""
    _at_first_step(lambda: atexit.register(_tell_of_fit))


def watch() -> None:
    """Called when data is sharded: the first step of a `fit` that reduces no gradient is told at once, on rank 0."""
    if not session.data_sharded:
        session.data_sharded = True
        _at_first_step(tell)


def tell() -> None:
    """The warning, if there is a reason; once per process, on rank 0."""
    if session.optimizer_reduced:
        text = "" if session.weights_alike else _NEVER_ALIKE
    elif session.gradients_reduced or session.fit_without_step:
        text = ""
    else:
        text = _WITH_KERAS if session.data_sharded else _WITH_PYTORCH if session.parameters_sent else ""
    rank, size = session.place or (0, 1)
    if text and not session.told_alone and rank == 0 and size > 1:
        session.told_alone = True
        _logger.warning("%s", text)


def _tell_of_fit() -> None:
    place = None
    with contextlib.suppress(ConfigError):  # a TF_CONFIG that is not for tfdist
        place = job_place.of_job()
    if place is not None and place[0] == 0 and place[1] > 1 and not (session.collectives or session.told_alone):
        _logger.warning("%s", _WITHOUT_EXCHANGE.format(size=place[1]))


def _at_first_step(action: Callable[[], object]) -> None:
    """Calls it, once, when a `fit` has taken its first step."""
    left = [action]

    def act(_model: Any, _batch: int) -> None:
        if left:
            left.pop()()

    after_import.after_import("keras", lambda: fit_hook.after_steps(lambda: act))
