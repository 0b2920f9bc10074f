"""Barrier: no rank continues before all ranks have reached it."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops.graph import call
from tfdist.world.process_sets import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Waits until every rank has called it.

    On a GPU, call it outside functions with `jit_compile=True`.

    Args:
        process_set: The ranks that take part.
        name: Same on every rank; errors name the barrier by it.

    Raises:
        MismatchError: On every rank, if one of them called something else.
        StallError: If a rank does not arrive in time.

    Example:

    ```python
    if tfdist.rank() == 0:
        prepare_data()
    tfdist.barrier(name="data is prepared")
    ```
    """
    number, label = call.number_of(process_set), name or "barrier"
    if tf.executing_eagerly() and not number:
        call.meet(label)
    else:
        call.run("tfdist_barrier", process_set=number, label=label)
