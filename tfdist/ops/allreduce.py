"""Allreduce: every rank gets the elementwise reduction of the tensors of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.ops import allgather
from tfdist.ops.adasum import fold_by_adasum
from tfdist.ops.compression import AnyCompression, Compression, pack
from tfdist.ops.graph import call, ranks
from tfdist.ops.reduction import Average, Product, ReduceOp, Sum, reduction_of
from tfdist.world import process_sets
from tfdist.world.process_sets import ProcessSet, global_process_set
from tfdist.world.session import session

_LARGEST_WEIGHT = 2**32 - 1


def allreduce(  # noqa: PLR0913 -- the signature of Horovod
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces one tensor over all ranks.

    Args:
        tensor: Tensor of any shape and of dtype bool, (u)int8, (u)int16, int32, int64, float16, bfloat16, float32 or
            float64; dtype and shape are the same on every rank. A `tf.IndexedSlices` is gathered, for Sum or Average
            only.
        average: Horovod's older form of `op`: True is Average, False is Sum.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: Wire type of float32 and float64 tensors, or a custom `Compressor`. Rows of a `tf.IndexedSlices`
            are not compressed.
        op: `Average` (default), `Sum`, `Min`, `Max`, `Product` or `Adasum`; Average and Adasum need floating dtypes.
            Adasum (Maleki et al. 2020, eq. 4) adds what tensors disagree on and averages what they agree on.
        prescale_factor: Multiplies the tensor before the reduction; floating dtypes only.
        postscale_factor: Multiplies the result; floating dtypes only.
        name: Same on every rank; errors name the tensor by it.
        process_set: The ranks that take part.

    Returns:
        Tensor of the same dtype and shape, with the same bits on every rank.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument is invalid.
        PeerLostError: If a rank died.

    Example:

    ```python
    total = tfdist.allreduce(tf.constant([tfdist.rank() + 1.0]), op=tfdist.Sum)
    ```
    """
    call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
    reduction = reduction_of(average, op)
    label = name or "allreduce"
    if isinstance(tensor, tf.IndexedSlices):
        _remember([tensor])
        _check_slices(tensor, reduction, (prescale_factor, postscale_factor), label)
        scale = call.factor_of(prescale_factor) * call.factor_of(postscale_factor)
        return _allreduce_slices(tensor, reduction, scale, label, process_set)
    return grouped_allreduce(
        [tensor],
        compression=compression,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=label,
        process_set=process_set,
    )[0]


def grouped_allreduce(  # noqa: PLR0913 -- the signature of Horovod
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    tensor_names: Sequence[str] | None = None,
    weight: int | tf.Tensor | None = None,
) -> list[Any]:
    """Reduces several tensors over all ranks; the dense ones in one fused collective.

    Args:
        tensors: Tensors as in `allreduce`; may differ in dtype and shape from each other.
        average: As in `allreduce`.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: As in `allreduce`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`; a float64 scalar tensor is read at run time.
        postscale_factor: As `prescale_factor`.
        name: Name of the collective in errors.
        process_set: The ranks that take part.
        tensor_names: One name per tensor, for errors; default: the name, numbered.
        weight: With Average, the weight of this rank, such as its number of samples: 0 to 2^32 - 1. Ranks that have
            joined have weight 0. Default: equal weights. Inside a function with `jit_compile=True` on a GPU it must not
            be computed from data; the number of samples in a batch is known from its shape.

    Returns:
        List in the order of `tensors`, each of the same type as its input.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument is invalid.

    Example:

    ```python
    first, second = tfdist.grouped_allreduce([a, b], op=tfdist.Sum, name="statistics")
    ```
    """
    call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
    label, reduction = name or "grouped_allreduce", reduction_of(average, op)
    names = list(tensor_names) if tensor_names is not None else call.names_of(tensors, label)
    if len(names) != len(tensors):
        raise errors.ConfigError(
            f"tensor_names has {len(names)} names for {len(tensors)} tensors; give one name per tensor."
        )
    result = list(tensors)
    sparse = [index for index, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    for index in sparse:
        if weight is not None:
            raise errors.ConfigError(f"weight needs dense tensors; {names[index]} is a tf.IndexedSlices.")
        _check_slices(tensors[index], reduction, (prescale_factor, postscale_factor), names[index])
    before, after = call.factor_of(prescale_factor), call.factor_of(postscale_factor)
    dense = [index for index in range(len(tensors)) if index not in sparse]
    _remember(tensors)
    if dense:
        how = FusedAllreduce(
            op=reduction,
            compression=compression,
            before=before,
            after=after,
            label=label,
            tensor_names=tuple(names[index] for index in dense),
            weight=weight,
            process_set=process_set,
        )
        for index, tensor in zip(dense, how.run([tensors[index] for index in dense]), strict=True):
            result[index] = tensor
    for index in sparse:
        result[index] = _allreduce_slices(tensors[index], reduction, before * after, names[index], process_set)
    return result


def reduce_figures(tensors: Sequence[Any], op: ReduceOp, name: str) -> list[tf.Tensor]:
    """Reduces values other than gradients, such as metrics and times, in one collective of all ranks.

    Unlike `grouped_allreduce` it does not count as a reduction of gradients.

    Args:
        tensors: Dense tensors.
        op: How to reduce.
        name: Name of the collective in errors.
    """
    one = call.factor_of(1.0)
    names = tuple(call.names_of(tensors, name))
    return list(FusedAllreduce(op, Compression.none, one, one, name, names, None, global_process_set).run(tensors))


def _remember(tensors: Sequence[Any]) -> None:
    """Records that a script reduces gradients itself; a single number is a loss, a metric or a count."""
    if not all(_is_number(tensor) for tensor in tensors):
        session.gradients_reduced = True
        session.reductions += 1


def _is_number(tensor: Any) -> bool:
    return isinstance(tensor, (int, float)) or tf.TensorShape(getattr(tensor, "shape", None)).rank == 0


@dataclass(frozen=True, eq=False)
class FusedAllreduce:
    """An all-reduce of dense tensors in one collective. Its arguments are as in `grouped_allreduce`.

    Attributes:
        op: How to reduce.
        compression: Wire type, or a custom compression.
        before: Multiplies the tensors: a float64 scalar.
        after: Multiplies the results: a float64 scalar.
        label: Name of the collective in errors.
        tensor_names: One name per tensor, for errors.
        weight: With Average, the weight of this rank; None: equal weights.
        process_set: The ranks that take part.
    """

    op: ReduceOp
    compression: AnyCompression
    before: tf.Tensor
    after: tf.Tensor
    label: str
    tensor_names: tuple[str, ...]
    weight: int | tf.Tensor | None
    process_set: ProcessSet

    def run(self, tensors: Sequence[Any]) -> Sequence[tf.Tensor]:
        """Returns the results, in the order of `tensors`."""
        inputs, unpack = self._inputs(tensors)
        return unpack(call.run("tfdist_grouped_allreduce", **inputs))

    def start(self, tensors: Sequence[Any]) -> Callable[[], Sequence[tf.Tensor]]:
        """Starts the collective; returns a function that waits for its results and must be called once.

        On a GPU, and on the CPU with `TFDIST_COMMUNICATION_THREAD=1`, the computation continues meanwhile; otherwise
        the collective runs immediately. Every started collective must be waited for.
        """
        if not call.overlaps():
            reduced = self.run(tensors)
            return lambda: reduced
        inputs, unpack = self._inputs(tensors)
        with _never_alone():
            pending, number = call.run("tfdist_start_allreduce", **inputs)

        def finish() -> Sequence[tf.Tensor]:
            place = {"process_set": inputs["process_set"], "label": self.label}
            with _never_alone():
                return unpack(call.run("tfdist_await", pending=pending, call=number, **place))

        return finish

    def _inputs(self, tensors: Sequence[Any]) -> tuple[dict[str, Any], Callable[..., Sequence[tf.Tensor]]]:
        """The arguments of the op, and a function that turns its outputs into results."""
        values, wire, unpack = pack(self.compression, call.tensors_of(tensors, self.tensor_names))
        inputs = {
            "tensors": values,
            "prescale": self.before,
            "postscale": self.after,
            "weight": _weight(self.weight),
            "weighted": self.weight is not None,
            "reduction": self.op.value,
            "compression": wire.value,
            "process_set": call.number_of(self.process_set),
            "label": self.label,
            "tensor_names": list(self.tensor_names),
        }
        return inputs, unpack


def _never_alone() -> AbstractContextManager[Any]:
    """Keeps automatic clustering (`tf.config.optimizer.set_jit`) from compiling one of two ops without the other."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def _weight(weight: Any) -> tf.Tensor:
    """The weight in the form the op takes; values are never rounded or clipped."""
    if weight is None:
        return tf.constant(1, tf.int64)
    if hasattr(weight, "dtype"):
        whole = tf.as_dtype(weight.dtype).is_integer
    else:
        whole = isinstance(weight, int) and 0 <= weight <= _LARGEST_WEIGHT
    if not whole:
        raise errors.ConfigError(f"weight must be an integer, 0 to {_LARGEST_WEIGHT}; received {weight!r}.")
    return tf.cast(weight, tf.int64) if hasattr(weight, "dtype") else tf.constant(weight, tf.int64)


def _check_slices(slices: tf.IndexedSlices, reduction: ReduceOp, factors: Sequence[Any], name: str) -> None:
    if reduction not in (Average, Sum):
        raise errors.UnsupportedError(
            f"tf.IndexedSlices can only be reduced by Sum or Average; {name} received {reduction.name.title()}."
        )
    scaled = reduction is Average or any(hasattr(factor, "dtype") or factor != 1 for factor in factors)
    dtype = tf.as_dtype(slices.values.dtype)
    if scaled and not dtype.is_floating:
        raise errors.ConfigError(
            f"{name} is a tf.IndexedSlices of {dtype.name}; Average and factors need a floating dtype. Use Sum "
            "without factors, or cast its values."
        )


def _allreduce_slices(
    slices: tf.IndexedSlices, reduction: ReduceOp, scale: tf.Tensor, label: str, process_set: ProcessSet
) -> tf.IndexedSlices:
    """Rows stay separate: whoever applies them adds up rows with the same index."""
    values, indices = allgather.grouped_allgather([slices.values, slices.indices], label, process_set)
    factor = scale / ranks.divisor_of(process_set) if reduction is Average else scale
    return tf.IndexedSlices(values * tf.cast(factor, values.dtype), indices, slices.dense_shape)


@tf.RegisterGradient("TfdistAwait")
def _gradient_of_await(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    return [*gradients, None, None]


@tf.RegisterGradient("TfdistStartAllreduce")
@tf.RegisterGradient("TfdistGroupedAllreduce")
def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """The gradient of the sum, over all ranks, of whatever was computed from the result."""
    functions = {
        "min": _gradient_of_extreme,
        "max": _gradient_of_extreme,
        "product": _gradient_of_product,
        "adasum": _gradient_of_adasum,
    }
    function = functions.get(op.get_attr("reduction").decode(), _gradient_of_sum)
    if op.get_attr("weighted"):
        function = _gradient_of_weighted_average

    def of_inputs(places: list[int], dense: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        return function(op, [op.inputs[place] for place in places], dense)

    tensors = len(op.get_attr("dtypes"))
    return [*call.differentiate(gradients[:tensors], of_inputs), None, None, None, None]


def _again(forward: tf.Operation, tensors: Sequence[tf.Tensor], purpose: str, **arguments: Any) -> list[tf.Tensor]:
    """Another all-reduce in the same process set."""
    process_set = process_sets.of_number(forward.get_attr("process_set"))
    label = f"{purpose} of {forward.get_attr('label').decode()}"
    return grouped_allreduce(tensors, name=label, process_set=process_set, **arguments)


def _factors(op: tf.Operation) -> tuple[tf.Tensor, tf.Tensor]:
    """The factors before and after the reduction."""
    count = len(op.get_attr("dtypes"))
    return op.inputs[count], op.inputs[count + 1]


def _gradient_of_sum(op: tf.Operation, inputs: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradient of a sum is the sum of the gradients; the other linear reductions follow from it."""
    before, after = _factors(op)
    compression = Compression(op.get_attr("compression").decode())
    reduction = ReduceOp(op.get_attr("reduction").decode())
    return _again(
        op,
        gradients,
        "gradient",
        op=reduction,
        compression=compression,
        prescale_factor=before,
        postscale_factor=after,
    )


def _gradient_of_weighted_average(
    op: tf.Operation, inputs: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The sum of the gradients, times this rank's share of all weights."""
    before, after = _factors(op)
    weight = tf.cast(op.inputs[len(op.get_attr("dtypes")) + 2], tf.float64)
    *totals, weights = _again(op, [*gradients, weight], "gradient", op=Sum)
    share = before * after * tf.math.divide_no_nan(weight, weights)
    return [total * tf.cast(share, total.dtype) for total in totals]


def _gradient_of_extreme(
    op: tf.Operation, inputs: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Goes to the ranks that hold the extreme value, in equal parts if several do."""
    before, after = _factors(op)
    # Not by comparing with the outputs: factors and compression have rounded those.
    signed = [x * tf.cast(tf.sign(before), x.dtype) for x in inputs]
    extremes = _again(op, signed, "extremes", op=ReduceOp(op.get_attr("reduction").decode()))
    held = [tf.cast(tf.equal(x, extreme), x.dtype) for x, extreme in zip(signed, extremes, strict=True)]
    summed = _again(op, [*gradients, *held], "gradient", op=Sum)
    totals, holders = summed[: len(inputs)], summed[len(inputs) :]
    factor = before * after
    return [
        tf.math.divide_no_nan(total * mine * tf.cast(factor, total.dtype), count)
        for total, mine, count in zip(totals, held, holders, strict=True)
    ]


def _gradient_of_product(
    op: tf.Operation, inputs: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The product over the other ranks: by division, except where a factor is zero."""
    before, after = _factors(op)
    factors = [x * tf.cast(before, x.dtype) for x in inputs]
    zeros = [tf.cast(tf.equal(x, 0), x.dtype) for x in factors]
    ones = [x + zero for x, zero in zip(factors, zeros, strict=True)]  # 1 where the factor is zero
    products = _again(op, ones, "products", op=Product)
    summed = _again(op, [*gradients, *zeros], "gradient", op=Sum)
    result = []
    for index, product in enumerate(products):
        others = summed[len(inputs) + index] - zeros[index]  # zeros on the other ranks
        of_others = tf.where(others > 0, tf.zeros_like(product), product / ones[index])
        result.append(summed[index] * of_others * tf.cast(before * after, product.dtype))
    return result


def _gradient_of_adasum(
    op: tf.Operation, inputs: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Through the formula itself, on the tensors of all ranks."""
    process_set = process_sets.of_number(op.get_attr("process_set"))
    before, after = _factors(op)
    totals = _again(op, gradients, "gradient", op=Sum)
    label = f"inputs of {op.get_attr('label').decode()}"
    everything = allgather.grouped_allgather([x[tf.newaxis] for x in inputs], label, process_set)
    result = []
    for tensors, total in zip(everything, totals, strict=True):
        wide = tf.float64 if tensors.dtype == tf.float64 else tf.float32
        parts = tf.unstack(tf.cast(tensors, wide) * tf.cast(before, wide), num=process_set.size())
        mine = parts[process_set.rank()]
        with tf.GradientTape() as tape:
            tape.watch(mine)
            folded = fold_by_adasum(parts) * tf.cast(after, wide)
        gradient = tape.gradient(folded, mine, output_gradients=tf.cast(total, wide))
        result.append(tf.cast(gradient * tf.cast(before, wide), total.dtype))
    return result
