"""Tells that the ranks train on their own although their data was sharded: nobody has added DataParallel."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from tfdist.system import after_import
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")


def watch() -> None:
    """Called when data is sharded: the first step of a `fit` that reduces no gradient is told at once, on rank 0."""
    if not session.data_sharded:
        session.data_sharded = True
        after_import.after_import("keras", _watch_first_step)


def tell() -> None:
    """The warning, if there is a reason; once per process, on rank 0."""
    trains_alone = session.data_sharded and not session.gradients_reduced and not session.fit_without_step
    if trains_alone and not session.told_alone and session.place is not None and session.place[0] == 0:
        session.told_alone = True
        _logger.warning(
            "the data was sharded, but no gradient was ever reduced: each rank trained on its own, on its shard "
            "only. Add the callback: model.fit(..., callbacks=[tfdist.callbacks.DataParallel()])"
        )


def _watch_first_step() -> None:
    callbacks = sys.modules["keras"].callbacks.CallbackList
    original = callbacks.on_train_batch_end

    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> Any:
        callbacks.on_train_batch_end = original
        tell()
        return original(self, batch, logs)

    callbacks.on_train_batch_end = on_train_batch_end
