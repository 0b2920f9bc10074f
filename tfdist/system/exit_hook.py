"""Functions to call when this process exits, but not when a forked child does."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any


def register(function: Callable[..., Any], *args: Any) -> None:
    """Registers `function` to be called when the interpreter of this process exits."""
    atexit.register(_call, os.getpid(), function, args)


def _call(process: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if os.getpid() == process:
        function(*args)
