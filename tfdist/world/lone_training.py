"""Tells that the ranks train on their own: nobody has added DataParallel, or made PyTorch's optimizer distributed."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from tfdist.system import after_import
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


def watch() -> None:
    """Called when data is sharded: the first step of a `fit` that reduces no gradient is told at once, on rank 0."""
    if not session.data_sharded:
        session.data_sharded = True
        after_import.after_import("keras", _watch_first_step)


def tell() -> None:
    """The warning, if there is a reason; once per process, on rank 0."""
    text = _WITH_KERAS if session.data_sharded else _WITH_PYTORCH if session.parameters_sent else ""
    is_told = session.gradients_reduced or session.fit_without_step or session.told_alone
    if text and not is_told and session.place is not None and session.place[0] == 0:
        session.told_alone = True
        _logger.warning("%s", text)


def _watch_first_step() -> None:
    callbacks = sys.modules["keras"].callbacks.CallbackList
    original = callbacks.on_train_batch_end

    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> Any:
        callbacks.on_train_batch_end = original
        tell()
        return original(self, batch, logs)

    callbacks.on_train_batch_end = on_train_batch_end
