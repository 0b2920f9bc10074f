"""Reducescatter: every rank gets some rows of the elementwise reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import config, errors
from tfdist.ops import allgather
from tfdist.ops.compression import AnyCompression, Compression
from tfdist.ops.graph import call, gradient_factor, ranks
from tfdist.ops.reduction import Average, ReduceOp, Sum
from tfdist.world import process_sets
from tfdist.world.process_sets import ProcessSet, global_process_set


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
        compression: Wire type of float32 and float64 tensors; a custom `Compressor` is not supported.
        prescale_factor: Multiplies the tensor before the reduction; floating dtypes only.
        postscale_factor: Multiplies the result; floating dtypes only.
        name: Same on every rank; errors name the tensor by it.
        process_set: The ranks that take part.

    Returns:
        Tensor of the same dtype. R rows over n ranks give each rank R // n rows, in the order of the ranks; the first R
        % n ranks have one more.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument is invalid.

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
        name: Name of the collective in errors.
        process_set: The ranks that take part.

    Returns:
        List of tensors in the order of `tensors`.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument is invalid.

    Example:

    ```python
    kernel, bias = tfdist.grouped_reducescatter([kernel, bias], op=tfdist.Sum, name="gradients")
    ```
    """
    if op not in (Average, Sum):
        raise errors.ConfigError(f"reducescatter supports op=tfdist.Average or op=tfdist.Sum; received {op!r}.")
    if not tensors:
        return []
    wire = Compression.of(compression)
    if not isinstance(wire, Compression):
        raise errors.ConfigError(
            f"reducescatter supports compression {', '.join(config.COMPRESSIONS)}; received {compression!r}, whose "
            "decompress would get only some rows. Compress the tensor yourself."
        )
    label = name or "grouped_reducescatter"
    names = call.names_of(tensors, label)
    ranks.note_if_compiled(process_set)
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
    """Every rank's tensor fed all rows, each of which is on one rank."""
    process_set = process_sets.of_number(op.get_attr("process_set"))
    count = len(gradients)
    factor = op.inputs[count] * op.inputs[count + 1]
    if op.get_attr("reduction") == b"average":
        factor /= ranks.divisor_of(process_set)
    factor *= gradient_factor.of_repeated_sum("reducescatter", process_set, ranks.divisor_of(process_set))
    label = f"gradient of {op.get_attr('label').decode()}"

    def all_rows(places: list[int], dense: list[tf.Tensor]) -> list[tf.Tensor]:
        inputs = [op.inputs[place] for place in places]
        scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in dense]
        return _gather_dealt_rows(scaled, inputs, label, process_set)

    return [*call.differentiate(gradients, all_rows), None, None, None]


def _gather_dealt_rows(
    parts: Sequence[tf.Tensor], wholes: Sequence[tf.Tensor], label: str, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Reassembles what reducescatter distributed; the results have the shapes of `wholes`.

    If the ranks may have unequal numbers of rows, each sends as many as the first, because XLA compiles only that.
    """
    size = ranks.size_of(process_set)
    equal = [isinstance(size, int) and whole.shape[0] is not None and whole.shape[0] % size == 0 for whole in wholes]
    sent = [
        part if same else _padded(part, whole, size) for part, whole, same in zip(parts, wholes, equal, strict=True)
    ]
    gathered = allgather.grouped_allgather(sent, name=label, process_set=process_set)
    return [
        tf.reshape(rows, tf.shape(whole)) if same else _without_padding(rows, whole, size)
        for rows, whole, same in zip(gathered, wholes, equal, strict=True)
    ]


def _most_rows(whole: tf.Tensor, size: int) -> tf.Tensor:
    """The rows of the first rank."""
    return (tf.shape(whole)[0] + size - 1) // size


def _padded(part: tf.Tensor, whole: tf.Tensor, size: int) -> tf.Tensor:
    missing = _most_rows(whole, size) - tf.shape(part)[0]
    return tf.concat([part, tf.zeros(tf.concat([[missing], tf.shape(part)[1:]], 0), part.dtype)], 0)


def _without_padding(rows: tf.Tensor, whole: tf.Tensor, size: int) -> tf.Tensor:
    """Removes the padding row of all but the first ranks, if there is one."""
    shape, most = tf.shape(whole), _most_rows(whole, size)
    by_rank = tf.reshape(rows, tf.concat([[size, most], shape[1:]], 0))
    full = shape[0] - (most - 1) * size
    first = tf.reshape(by_rank[:full], tf.concat([[full * most], shape[1:]], 0))
    rest = tf.reshape(by_rank[full:, : most - 1], tf.concat([[(size - full) * (most - 1)], shape[1:]], 0))
    return tf.concat([first, rest], 0)
