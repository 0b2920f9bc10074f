"""Keras' warning of its own default, `shuffle=True` in a `fit` of a `tf.data.Dataset`: every rank would print it.

It comes before `fit` calls any callback, so it is hidden from `tfdist.shard` on until a callback of ours is called.
"""

from __future__ import annotations

import warnings
from typing import Any

_hidden: list[Any] = []


def hide() -> None:
    """Until `show`."""
    if not _hidden:
        warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored", module=r"keras\.")
        _hidden.append(warnings.filters[0])


def show() -> None:
    """The filters are as they were."""
    while _hidden:
        entry = _hidden.pop()
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]
