"""Alltoall: every rank gets some rows from every other rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.ops.graph import call
from tfdist.world import process_sets
from tfdist.world.process_sets import ProcessSet, global_process_set


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends rows of the tensor to each rank, and returns those that all ranks sent here.

    You need it if each rank holds a part of something that all ranks look up, such as an embedding table.

    Args:
        tensor: Tensor of at least one dimension and of any supported dtype; dimensions after the first are the same on
            every rank.
        splits: Integer tensor [number of ranks]: how many rows, in order, each rank gets; may contain zeros and must
            add up to the rows of `tensor`. By default all ranks get the same number.
        name: Same on every rank; errors name the tensor by it.
        process_set: The ranks that take part.

    Returns:
        Tensor of the same dtype with the rows from all ranks, in the order of the ranks; with `splits` a tuple of it
        and an int32 tensor [number of ranks] with the number of rows from each.

    Raises:
        MismatchError: On every rank, if dtype, rank or a dimension after the first differs, or some rank's splits are
            wrong.
        ConfigError: If the splits are wrong on every rank.

    Example:

    ```python
    # Two ranks: rank 0 sends one row to itself and two to rank 1.
    rows, counts = tfdist.alltoall(rows, splits=[1, 2], name="rows")
    ```
    """
    label = name or "alltoall"
    (value,) = call.tensors_of([tensor], [label])
    received, received_splits = call.run(
        "tfdist_alltoall",
        value,
        tf.zeros([0], tf.int64) if splits is None else _counts(splits, label),
        equal_splits=splits is None,
        process_set=call.number_of(process_set),
        label=label,
    )
    if splits is None:
        return received
    return received, tf.cast(received_splits, tf.int32)


def _counts(splits: Any, label: str) -> tf.Tensor:
    counts = tf.convert_to_tensor(splits)
    if not counts.dtype.is_integer:
        raise errors.ConfigError(
            f"alltoall '{label}' received splits of dtype {counts.dtype.name}; expected integers, one number of rows "
            "for each rank."
        )
    return tf.cast(counts, tf.int64)


@tf.RegisterGradient("TfdistAlltoall")
def _gradient(op: tf.Operation, gradient: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor | None, None, None]:
    """The rows return to where they came from."""
    process_set = process_sets.of_number(op.get_attr("process_set"))
    label = f"gradient of {op.get_attr('label').decode()}"

    def send_back(_: list[int], dense: list[tf.Tensor]) -> list[tf.Tensor]:
        returned, _ = alltoall(dense[0], op.outputs[1], name=label, process_set=process_set)
        return [tf.reshape(returned, tf.shape(op.inputs[0]))]

    (mine,) = call.differentiate([gradient], send_back)
    return mine, None, None
