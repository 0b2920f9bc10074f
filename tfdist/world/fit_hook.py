"""Puts something around `keras.Model.fit`, or behind its steps, that is imported with the first call of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tfdist.world.session import session


def install(load: Callable[[], Callable[..., Any]]) -> None:
    """Makes `keras.Model.fit(...)` call `load()(original, ...)`; only the first installation counts.

    Keras must have been imported. What `load` imports needs Keras as well, and a module of tfdist whose import is not
    complete may be what imports Keras now: only a call of `fit` is surely after that.
    """
    if session.fit_is_elastic:
        return
    session.fit_is_elastic = True
    model = sys.modules["keras"].Model
    original = model.fit

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        return load()(original, *args, **kwargs)

    model.fit = fit


def after_steps(load: Callable[[], Callable[[Any, int], object]]) -> None:
    """Makes each training step of a `fit`, or each execution of several, call `load()(model, batch)` when it has ended.

    Keras must have been imported; one that is too old to have a `CallbackList` is left alone.
    """
    callbacks = getattr(getattr(sys.modules["keras"], "callbacks", None), "CallbackList", None)
    if callbacks is None:
        return
    original = callbacks.on_train_batch_end

    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> Any:
        load()(self.model, batch)
        return original(self, batch, logs)

    callbacks.on_train_batch_end = on_train_batch_end
