"""Separates the collectives of a graph from the computation around them, alike on all ranks. Runs none.

A blocking collective occupies its inter-op thread until all ranks have joined it. The executor of each rank is free to
choose what runs before it and what after it: with only one such thread, ranks that choose differently compute in turn
instead of at the same time. So nothing that takes time may be free to run on either side of a collective. If
collectives overlap with the computation anyway, and in eager code, nothing is changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.ops.graph import call, session_graph


def after(values: Sequence[Any]) -> AbstractContextManager[Any]:
    """Ops created inside run once all values are available.

    Args:
        values: Tensor, `tf.IndexedSlices` or None each.
    """
    if _is_free():
        return contextlib.nullcontext()
    return tf.control_dependencies(_tensors_of(values))


def together(values: Sequence[Any]) -> list[Any]:
    """The values, none of which is available before all are.

    Args:
        values: As `after`.
    """
    if _is_free():
        return list(values)
    with after(values):
        return [None if value is None else tf.identity(value) for value in values]


class Section:
    """The part of a graph that is created from here on.

    Example:

    ```python
    section = Section()
    optimizer.apply_gradients(...)
    with section.done():
        loss = tfdist.allreduce(loss)  # after the updates on every rank
    ```
    """

    def __init__(self) -> None:
        self._graph = None if _is_free() else tf.compat.v1.get_default_graph()
        self._start = 0 if self._graph is None else len(self._graph.get_operations())

    def done(self) -> AbstractContextManager[Any]:
        """Ops created inside run after everything that the section changes, such as variables."""
        if self._graph is None:
            return contextlib.nullcontext()
        section = self._graph.get_operations()[self._start :]
        return tf.control_dependencies([op for op in section if op.op_def.is_stateful and op.type != "ReadVariableOp"])


def _is_free() -> bool:
    return tf.executing_eagerly() or call.overlaps() or session_graph.is_current()


def _tensors_of(values: Sequence[Any]) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(values, expand_composites=True) if leaf is not None]
