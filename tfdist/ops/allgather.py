"""Allgather: every rank gets the concatenated tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops import allreduce
from tfdist.ops.graph import call, gradient_factor, ranks
from tfdist.ops.reduction import Sum
from tfdist.world import process_sets
from tfdist.world.process_sets import ProcessSet, global_process_set


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in the order of the ranks.

    Args:
        tensor: Tensor of any supported dtype; dimension 0 may differ by rank, the others may not. A scalar counts as
            one row.
        name: Same on every rank; errors name the tensor by it.
        process_set: The ranks that take part.

    Returns:
        Tensor of the same dtype whose dimension 0 is the sum over the ranks.

    Raises:
        MismatchError: On every rank, if dtype, rank or a dimension after the first differs.

    Example:

    ```python
    ids = tfdist.allgather(tf.constant([tfdist.rank()]), name="ids")  # [0, 1, ...]
    ```
    """
    return grouped_allgather([tensor], name=name or "allgather", process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Concatenates each of several tensors over all ranks, in one collective.

    Args:
        tensors: Tensors as in `allgather`; may differ in dtype and shape from each other.
        name: Name of the collective in errors.
        process_set: The ranks that take part.

    Returns:
        List of tensors in the order of `tensors`.

    Raises:
        MismatchError: On every rank, if a dtype, a rank or a dimension after the first differs.

    Example:

    ```python
    ids, scores = tfdist.grouped_allgather([ids, scores], name="predictions")
    ```
    """
    if not tensors:
        return []
    label = name or "grouped_allgather"
    names = call.names_of(tensors, label)
    ranks.note_if_compiled(process_set)
    gathered, _ = call.run(
        "tfdist_grouped_allgather",
        call.tensors_of(tensors, names),
        process_set=call.number_of(process_set),
        label=label,
        tensor_names=names,
    )
    return list(gathered)


@tf.RegisterGradient("TfdistGroupedAllgather")
def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """Each rank's rows fed every rank's result: sum the gradients, then keep the rows this rank contributed."""
    process_set = process_sets.of_number(op.get_attr("process_set"))
    label = f"gradient of {op.get_attr('label').decode()}"
    rows, rank = op.outputs[-1], ranks.rank_of(process_set)

    factor = gradient_factor.of_average("allgather", process_set, ranks.divisor_of(process_set))

    def own_rows(places: list[int], dense: list[tf.Tensor]) -> list[tf.Tensor]:
        summed = allreduce.grouped_allreduce(
            dense, op=Sum, postscale_factor=factor, name=label, process_set=process_set
        )
        kept = []
        for place, gradient in zip(places, summed, strict=True):
            begin = tf.reduce_sum(rows[place, :rank])
            mine = gradient[begin : begin + rows[place, rank]]
            kept.append(tf.reshape(mine, tf.shape(op.inputs[place])))
        return kept

    return [*call.differentiate(gradients[:-1], own_rows), None]
