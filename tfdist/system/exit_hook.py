"""Functions that are called when this process exits, and not when one exits that it has forked."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any


def register(function: Callable[..., Any], *args: Any) -> None:
    """Has `function` called when the interpreter of this process exits."""
    atexit.register(_call, os.getpid(), function, args)


def _call(process: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if os.getpid() == process:
        function(*args)
