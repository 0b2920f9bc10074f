"""Puts something around `keras.Model.fit` that is imported with the first call of it."""

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
