"""Hides Keras' warning about its own default, `shuffle=True` in a `fit` of a `tf.data.Dataset`, on all ranks.

It comes before `fit` calls any callback, so it is hidden from `tfdist.shard` until a tfdist callback is called.
"""

from __future__ import annotations

import warnings
from typing import Any

_hidden: list[Any] = []


def hide() -> None:
    """Hides the warning until `show`."""
    if not _hidden:
        warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored", module=r"keras\.")
        _hidden.append(warnings.filters[0])


def show() -> None:
    """Restores the filters."""
    while _hidden:
        entry = _hidden.pop()
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]
