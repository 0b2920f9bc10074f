"""Allgather: every rank gets the tensors of all ranks, one after the other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist import runtime
from tfdist.ops import allreduce, call
from tfdist.reduction import Sum


def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in the order of the ranks.

    Args:
        tensor: Tensor of any dtype that collectives carry; dimension 0 may differ by rank, the others may not. A
            scalar counts as one row.
        name: Same on every rank; errors name the tensor by it.

    Returns:
        Tensor of the same dtype whose dimension 0 is the sum of those of the ranks.

    Raises:
        MismatchError: On every rank, if dtype, rank or a dimension after the first differs.

    Example:

    ```python
    ids = tfdist.allgather(tf.constant([tfdist.rank()]), name="ids")  # [0, 1, ...]
    ```
    """
    return call.run("tfdist_allgather", tf.convert_to_tensor(tensor), label=name or "allgather")


@tf.RegisterGradient("TfdistAllgather")
def _gradient(op: tf.Operation, gradient: tf.Tensor) -> tuple[tf.Tensor, None]:
    """Each rank's rows fed every rank's result: sum the gradients, then keep the rows this rank gave."""
    label = f"gradient of {op.get_attr('label').decode()}"
    shape = tf.shape(op.inputs[0], out_type=tf.int64)
    rows = tf.cond(tf.size(shape) > 0, lambda: shape[:1], lambda: tf.ones([1], tf.int64))
    counts = allgather(rows, name=f"{label}/rows")
    summed = allreduce.allreduce(gradient, op=Sum, name=label)
    begin = tf.reduce_sum(counts[: runtime.rank()])
    return tf.reshape(summed[begin : begin + counts[runtime.rank()]], shape), None
