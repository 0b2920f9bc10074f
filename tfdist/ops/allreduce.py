"""Allreduce: every rank gets the elementwise reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors, runtime
from tfdist.compression import Compression
from tfdist.ops import allgather, call
from tfdist.reduction import Average, ReduceOp, Sum


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression | str = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Reduces one tensor over all ranks.

    Args:
        tensor: Tensor of any shape and of dtype bool, (u)int8, (u)int16, int32, int64, float16, bfloat16, float32 or
            float64; dtype and shape are the same on every rank. A `tf.IndexedSlices` is gathered, with Sum or
            Average only.
        average: Horovod's older form of `op`: True is Average, False is Sum.
        device_dense: Only "".
        device_sparse: Only "".
        compression: Wire type of float32 and float64 tensors.
        op: `Average` (default), `Sum`, `Min`, `Max` or `Product`; Average takes floating dtypes only.
        prescale_factor: Multiplies the tensor before the reduction; floating dtypes only.
        postscale_factor: Multiplies the result; floating dtypes only.
        name: Same on every rank; errors name the tensor by it.

    Returns:
        Tensor of the same dtype and shape, with the same bits on every rank.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument cannot be honoured.
        PeerLostError: If a rank died.

    Example:

    ```python
    total = tfdist.allreduce(tf.constant([tfdist.rank() + 1.0]), op=tfdist.Sum)
    ```
    """
    call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
    reduction = _reduction(average, op)
    label = name or "allreduce"
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, reduction, prescale_factor * postscale_factor, label)
    return grouped_allreduce(
        [tensor],
        compression=compression,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=label,
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression | str = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
    name: str | None = None,
    tensor_names: Sequence[str] | None = None,
) -> list[tf.Tensor]:
    """Reduces several dense tensors over all ranks in one fused collective.

    Args:
        tensors: Tensors as in `allreduce`; may differ in dtype and shape from each other.
        average: As in `allreduce`.
        device_dense: Only "".
        device_sparse: Only "".
        compression: As in `allreduce`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`; a float64 scalar tensor is read at run time.
        postscale_factor: As `prescale_factor`.
        name: What errors call the collective.
        tensor_names: One name a tensor, for errors; default: the name, numbered.

    Returns:
        List of tensors in the order of `tensors`.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument cannot be honoured.

    Example:

    ```python
    first, second = tfdist.grouped_allreduce([a, b], op=tfdist.Sum, name="statistics")
    ```
    """
    call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
    if not tensors:
        return []
    label = name or "grouped_allreduce"
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    names = list(tensor_names) if tensor_names is not None else call.names_of(values, label)
    if len(names) != len(values):
        raise errors.ConfigError(f"tensor_names has {len(names)} names for {len(values)} tensors; give one a tensor.")
    runtime.remember(runtime.REDUCED)
    reduced = call.run(
        "tfdist_grouped_allreduce",
        tensors=values,
        prescale=tf.cast(prescale_factor, tf.float64),
        postscale=tf.cast(postscale_factor, tf.float64),
        reduction=_reduction(average, op).value,
        compression=Compression.of(compression).value,
        label=label,
        tensor_names=names,
    )
    return list(reduced)


def _reduction(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise errors.ConfigError(f"give op or average, not both; received op={op} and average={average}.")
    if average is not None:
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, ReduceOp):
        raise errors.ConfigError(
            f"op must be one of tfdist.{', tfdist.'.join(r.name.title() for r in ReduceOp)}; received {op!r}."
        )
    return op


def _allreduce_slices(slices: tf.IndexedSlices, reduction: ReduceOp, scale: float, label: str) -> tf.IndexedSlices:
    """Rows stay apart: adding up rows of the same index is left to whoever applies them."""
    if reduction not in (Average, Sum):
        raise errors.ConfigError(
            f"tf.IndexedSlices can be reduced by Sum or Average; received {reduction.name.title()}."
        )
    factor = scale / runtime.size() if reduction is Average else scale
    values = allgather.allgather(slices.values, name=f"{label}/values")
    indices = allgather.allgather(slices.indices, name=f"{label}/indices")
    return tf.IndexedSlices(values * tf.cast(factor, values.dtype), indices, slices.dense_shape)


@tf.RegisterGradient("TfdistGroupedAllreduce")
def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """A sum's gradient is the sum of the gradients; the other linear forms follow from it."""
    reduction = op.get_attr("reduction").decode()
    if reduction not in ("sum", "average"):
        raise LookupError(f"allreduce has a gradient for Sum and Average only; received {reduction}.")
    count = len(gradients)
    reduced = grouped_allreduce(
        gradients,
        op=ReduceOp(reduction),
        compression=Compression(op.get_attr("compression").decode()),
        prescale_factor=op.inputs[count],
        postscale_factor=op.inputs[count + 1],
        name=f"gradient of {op.get_attr('label').decode()}",
    )
    return [*reduced, None, None, None]
