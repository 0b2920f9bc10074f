"""Join: a rank that has run out of data takes part with nothing until all ranks have."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops.graph import call


def join() -> int | tf.Tensor:
    """Signals that this rank has nothing left to contribute, and waits until all ranks have joined.

    You need it in a custom training loop in which ranks have unequal numbers of steps; `tfdist.shard(...,
    remainder="join")` with `tfdist.callbacks.DataParallel` does it for `fit`. Meanwhile this rank contributes zeros to
    the others' calls: allreduce by Sum, Average (which still divides by the number of all ranks) or Adasum, allgather
    (no rows) and barrier. Any other collective would give wrong results, so it fails on every rank. In a process set
    nothing replaces a member that has joined: the others wait for it until the stall timeout.

    Returns:
        The rank that joined last; it has seen every update, so broadcast its state from there. An int, or in a
        `tf.function` an int32 scalar.

    Raises:
        MismatchError: On every rank, if another rank called a collective that zeros would falsify.

    Example:

    ```python
    for batch in dataset:  # unequal numbers of batches
        train_step(batch)
    tfdist.broadcast_variables(model.weights, root_rank=tfdist.join())
    ```
    """
    last = call.run("tfdist_join")
    return int(last) if tf.executing_eagerly() else last
