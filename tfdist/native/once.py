"""A function that runs once in a process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Once(Generic[_Result]):
    """`functools.cache`, but if two threads call first, both get the same object, with the same declarations."""

    def __init__(self, load: Callable[[], _Result]) -> None:
        self._cached, self._lock = functools.cache(load), threading.Lock()
        functools.update_wrapper(self, load)

    def __call__(self) -> _Result:
        with self._lock:
            return self._cached()

    def cache_clear(self) -> None:
        """Makes the next call load again."""
        self._cached.cache_clear()
