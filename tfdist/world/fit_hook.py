"""Puts something around `keras.Model.fit`, or behind its steps, that is imported with the first call of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
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
    _call_first("on_train_batch_end", lambda callbacks, batch, _logs=None: load()(callbacks.model, batch))


def before_steps(load: Callable[[], Callable[[Any], object]]) -> None:
    """Makes each training step of a `fit`, or each execution of several, call `load()(model)` before it begins.

    Keras as in `after_steps`.
    """
    _call_first("on_train_batch_begin", lambda callbacks, _batch, _logs=None: load()(callbacks.model))


def before_tests(load: Callable[[], Callable[[Any, Sequence[Any]], object]]) -> None:
    """Makes each `evaluate`, also that of a `fit`, call `load()(model, callbacks)` before its first step.

    Keras as in `after_steps`.
    """
    _call_first("on_test_begin", lambda callbacks, _logs=None: load()(callbacks.model, callbacks.callbacks))


def _call_first(name: str, action: Callable[..., object]) -> None:
    """Makes a method of Keras' `CallbackList` call `action` first, with the same arguments."""
    callbacks = getattr(getattr(sys.modules["keras"], "callbacks", None), "CallbackList", None)
    if callbacks is None:
        return
    original = getattr(callbacks, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        action(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(callbacks, name, method)
