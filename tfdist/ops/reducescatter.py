"""Reducescatter: every rank gets some rows of the elementwise reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors, process_sets
from tfdist.compression import AnyCompression, Compression
from tfdist.ops import allgather, call
from tfdist.process_sets import ProcessSet, global_process_set
from tfdist.reduction import Average, ReduceOp, Sum


def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    compression: AnyCompression = Compression.none,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and returns this rank's rows of the result.

    Args:
        tensor: Tensor of at least one dimension; dtype and shape are the same on every rank.
        op: `Average` (floating dtypes) or `Sum`.
        compression: Wire type of float32 and float64 tensors; a `Compressor` of your own is refused.
        prescale_factor: Multiplies the tensor before the reduction; floating dtypes only.
        postscale_factor: Multiplies the result; floating dtypes only.
        name: Same on every rank; errors name the tensor by it.
        process_set: The ranks that take part.

    Returns:
        Tensor of the same dtype. R rows over n ranks give each rank R // n rows, in the order of the ranks; the first
        R % n ranks have one more.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument cannot be honoured.

    Example:

    ```python
    mine = tfdist.reducescatter(gradient, op=tfdist.Sum, name="gradient")
    ```
    """
    return grouped_reducescatter(
        [tensor], op, compression, prescale_factor, postscale_factor, name or "reducescatter", process_set
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    compression: AnyCompression = Compression.none,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduces several tensors over all ranks in one fused collective and returns this rank's rows of each.

    Args:
        tensors: Tensors as in `reducescatter`; may differ in dtype and shape from each other.
        op: As in `reducescatter`.
        compression: As in `reducescatter`.
        prescale_factor: As in `reducescatter`.
        postscale_factor: As in `reducescatter`.
        name: What errors call the collective.
        process_set: The ranks that take part.

    Returns:
        List of tensors in the order of `tensors`.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument cannot be honoured.

    Example:

    ```python
    kernel, bias = tfdist.grouped_reducescatter([kernel, bias], op=tfdist.Sum, name="gradients")
    ```
    """
    if op not in (Average, Sum):
        raise errors.ConfigError(f"reducescatter takes op=tfdist.Average or op=tfdist.Sum; received {op!r}.")
    if not tensors:
        return []
    wire = Compression.of(compression)
    if not isinstance(wire, Compression):
        raise errors.ConfigError(
            f"reducescatter takes compression none, fp16 or bf16; received {compression!r}, whose decompress would get "
            "some rows only. Compress the tensor yourself."
        )
    label = name or "grouped_reducescatter"
    names = call.names_of(tensors, label)
    scattered = call.run(
        "tfdist_grouped_reducescatter",
        tensors=call.tensors_of(tensors, names),
        prescale=call.factor_of(prescale_factor),
        postscale=call.factor_of(postscale_factor),
        reduction=op.value,
        compression=wire.value,
        process_set=call.number_of(process_set),
        label=label,
        tensor_names=names,
    )
    return list(scattered)


@tf.RegisterGradient("TfdistGroupedReducescatter")
def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """Every rank's tensor fed all rows, each of which one rank has."""
    process_set = process_sets.of_number(op.get_attr("process_set"))
    count = len(gradients)
    factor = op.inputs[count] * op.inputs[count + 1]
    if op.get_attr("reduction") == b"average":
        factor /= process_set.size()
    label = f"gradient of {op.get_attr('label').decode()}"

    def all_rows(places: list[int], dense: list[tf.Tensor]) -> list[tf.Tensor]:
        whole = allgather.grouped_allgather(dense, name=label, process_set=process_set)
        return [
            tf.reshape(gradient * tf.cast(factor, gradient.dtype), tf.shape(op.inputs[place]))
            for place, gradient in zip(places, whole, strict=True)
        ]

    return [*call.differentiate(gradients, all_rows), None, None, None]
