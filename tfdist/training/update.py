"""Updates that are held back when optimizers are asked for them, so that several can become one. Not an optimizer."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.native import keras_version


@dataclass(frozen=True)
class Update:
    """What an optimizer was asked to apply.

    Attributes:
        optimizer: The optimizer.
        gradients: Tensor, `tf.IndexedSlices` or None each, not yet reduced over the ranks, clipped or unscaled.
        variables: The variable of each gradient.
    """

    optimizer: Any
    gradients: Sequence[Any]
    variables: Sequence[Any]


_held: contextvars.ContextVar[list[Update] | None] = contextvars.ContextVar("held", default=None)


@contextlib.contextmanager
def held() -> Iterator[list[Update]]:
    """Inside, a distributed optimizer applies and counts nothing: its updates are added to the list instead."""
    updates: list[Update] = []
    token = _held.set(updates)
    try:
        yield updates
    finally:
        _held.reset(token)


class Holding:
    """Mixed into the class of every distributed optimizer."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        updates = _held.get()
        if updates is None:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        else:
            variables = keras_version.variables_in(self) if trainable_variables is None else trainable_variables
            updates.append(Update(self, list(grads), list(variables)))
