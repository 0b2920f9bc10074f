"""Collectives with Horovod's argument order for TensorFlow. They only forward their arguments.

All have Horovod's `ignore_name_scope`: here a name never includes TensorFlow's name scope, so True and False are
equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.ops import allgather as allgather_op
from tfdist.ops import allreduce as allreduce_op
from tfdist.ops import alltoall as alltoall_op
from tfdist.ops import broadcast as broadcast_op
from tfdist.ops import reducescatter as reducescatter_op
from tfdist.ops.compression import AnyCompression, Compression
from tfdist.ops.graph import call, session_graph
from tfdist.ops.reduction import Average, ReduceOp, reduction_of
from tfdist.tensorflow import integer, session
from tfdist.world.process_sets import ProcessSet, global_process_set


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
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces one tensor over all ranks; see `tfdist.allreduce`.

    Averages of integers are cut to a whole number; factors multiply them in float64, and each product is cut.

    Args:
        tensor: As in `tfdist.allreduce`, and so are the other arguments.
        average: As in `tfdist.allreduce`.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: As in `tfdist.allreduce`.
        op: As in `tfdist.allreduce`.
        prescale_factor: As in `tfdist.allreduce`.
        postscale_factor: As in `tfdist.allreduce`.
        name: As in `tfdist.allreduce`.
        process_set: As in `tfdist.allreduce`.
        ignore_name_scope: True or False, which are the same.
    """
    _check_flag(ignore_name_scope)
    reduction, factors = reduction_of(average, op), (prescale_factor, postscale_factor)
    if integer.are_affected(tensor, reduction, factors):
        call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
        label = name or "allreduce"
        return integer.reduce([tensor], reduction, factors, process_set, _sum_of(label, process_set, compression))[0]
    return allreduce_op.allreduce(
        tensor,
        average,
        device_dense,
        device_sparse,
        compression,
        op,
        prescale_factor,
        postscale_factor,
        name,
        process_set,
    )


def grouped_allreduce(  # noqa: PLR0913 -- the signature of Horovod
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors over all ranks; see `tfdist.grouped_allreduce`.

    Averages and factors of integers are as in `allreduce`, in a collective of their own.

    Args:
        tensors: As in `tfdist.grouped_allreduce`, and so are the other arguments.
        average: As in `tfdist.grouped_allreduce`.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: As in `tfdist.grouped_allreduce`.
        op: As in `tfdist.grouped_allreduce`.
        prescale_factor: As in `tfdist.grouped_allreduce`.
        postscale_factor: As in `tfdist.grouped_allreduce`.
        process_set: As in `tfdist.grouped_allreduce`.
        ignore_name_scope: True or False, which are the same.
        name: As in `tfdist.grouped_allreduce`.
    """
    _check_flag(ignore_name_scope)
    reduction, factors = reduction_of(average, op), (prescale_factor, postscale_factor)
    label = f"{name or 'grouped_allreduce'}/integers"

    def reduce(others: list[Any]) -> list[Any]:
        given = (device_dense, device_sparse, compression, reduction, prescale_factor, postscale_factor)
        return allreduce_op.grouped_allreduce(others, None, *given, name, process_set)

    return integer.beside_others(
        tensors, reduction, factors, process_set, _sum_of(label, process_set, compression), reduce
    )


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the tensors of all ranks; see `tfdist.allgather`.

    Args:
        tensor: As in `tfdist.allgather`, and so are the other arguments.
        name: As in `tfdist.allgather`.
        ignore_name_scope: True or False, which are the same.
        process_set: As in `tfdist.allgather`.
    """
    _check_flag(ignore_name_scope)
    return allgather_op.allgather(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Concatenates several tensors of all ranks; see `tfdist.grouped_allgather`.

    Args:
        tensors: As in `tfdist.grouped_allgather`, and so are the other arguments.
        name: As in `tfdist.grouped_allgather`.
        ignore_name_scope: True or False, which are the same.
        process_set: As in `tfdist.grouped_allgather`.
    """
    _check_flag(ignore_name_scope)
    return allgather_op.grouped_allgather(tensors, name, process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the tensor of one rank on every rank; see `tfdist.broadcast`.

    Args:
        tensor: As in `tfdist.broadcast`, and so are the other arguments.
        root_rank: As in `tfdist.broadcast`.
        name: As in `tfdist.broadcast`.
        ignore_name_scope: True or False, which are the same.
        process_set: As in `tfdist.broadcast`.
    """
    _check_flag(ignore_name_scope)
    return broadcast_op.broadcast(tensor, root_rank, name, process_set)


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = True,
) -> tf.Operation | None:
    """Overwrites variables with the values they have on one rank; see `tfdist.broadcast_variables`.

    In a graph that a session runs, it returns the op that does so.

    Args:
        variables: As in `tfdist.broadcast_variables`, and so are the other arguments.
        root_rank: As in `tfdist.broadcast_variables`.
        process_set: As in `tfdist.broadcast_variables`.
        inplace: Whether values are received directly in the memory of the variables. If False, they are received in
            tensors and then assigned, which takes the same memory again.
    """
    if session_graph.is_current():
        return session.broadcast_in_graph(variables, root_rank, process_set)
    if inplace:
        broadcast_op.broadcast_variables(variables, root_rank, process_set=process_set)
        return None
    received = broadcast_op.grouped_broadcast(
        [tf.convert_to_tensor(variable) for variable in variables],
        root_rank,
        name="broadcast_variables",
        process_set=process_set,
    )
    for variable, value in zip(variables, received, strict=True):
        variable.assign(value)
    return None


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends rows to each rank and returns those that all ranks sent here; see `tfdist.alltoall`.

    Args:
        tensor: As in `tfdist.alltoall`, and so are the other arguments.
        splits: As in `tfdist.alltoall`.
        name: As in `tfdist.alltoall`.
        ignore_name_scope: True or False, which are the same.
        process_set: As in `tfdist.alltoall`.
    """
    _check_flag(ignore_name_scope)
    return alltoall_op.alltoall(tensor, splits, name, process_set)


def reducescatter(  # noqa: PLR0913 -- the signature of Horovod
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompression = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
) -> tf.Tensor:
    """Returns this rank's rows of the reduction over all ranks; see `tfdist.reducescatter`.

    Averages and factors of integers are as in `allreduce`.

    Args:
        tensor: As in `tfdist.reducescatter`, and so are the other arguments.
        device_dense: Must be "".
        compression: As in `tfdist.reducescatter`.
        op: As in `tfdist.reducescatter`.
        name: As in `tfdist.reducescatter`.
        process_set: As in `tfdist.reducescatter`.
        ignore_name_scope: True or False, which are the same.
        prescale_factor: As in `tfdist.reducescatter`.
        postscale_factor: As in `tfdist.reducescatter`.
    """
    _check_flag(ignore_name_scope)
    call.refuse_device(device_dense=device_dense)
    factors = (prescale_factor, postscale_factor)
    if integer.are_affected(tensor, op, factors):
        rows = _rows_of(name or "reducescatter", process_set, compression)
        return integer.reduce([tensor], op, factors, process_set, rows)[0]
    return reducescatter_op.reducescatter(tensor, op, compression, prescale_factor, postscale_factor, name, process_set)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: AnyCompression = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float | tf.Tensor = 1.0,
    postscale_factor: float | tf.Tensor = 1.0,
) -> list[tf.Tensor]:
    """Returns this rank's rows of several reductions over all ranks; see `tfdist.grouped_reducescatter`.

    Averages and factors of integers are as in `allreduce`, in a collective of their own.

    Args:
        tensors: As in `tfdist.grouped_reducescatter`, and so are the other arguments.
        device_dense: Must be "".
        compression: As in `tfdist.grouped_reducescatter`.
        op: As in `tfdist.grouped_reducescatter`.
        process_set: As in `tfdist.grouped_reducescatter`.
        prescale_factor: As in `tfdist.grouped_reducescatter`.
        postscale_factor: As in `tfdist.grouped_reducescatter`.
    """
    call.refuse_device(device_dense=device_dense)
    factors = (prescale_factor, postscale_factor)

    def reduce(others: list[Any]) -> list[Any]:
        return reducescatter_op.grouped_reducescatter(others, op, compression, *factors, process_set=process_set)

    of_integers = _rows_of("grouped_reducescatter/integers", process_set, compression)
    return integer.beside_others(tensors, op, factors, process_set, of_integers, reduce)


_OfIntegers = Callable[[list[tf.Tensor], ReduceOp], list[tf.Tensor]]


def _sum_of(name: str, process_set: ProcessSet, compression: AnyCompression) -> _OfIntegers:
    def reduce(tensors: list[tf.Tensor], op: ReduceOp) -> list[tf.Tensor]:
        _need_no_compressor(compression)
        return allreduce_op.grouped_allreduce(tensors, op=op, name=name, process_set=process_set)

    return reduce


def _rows_of(name: str, process_set: ProcessSet, compression: AnyCompression) -> _OfIntegers:
    def reduce(tensors: list[tf.Tensor], op: ReduceOp) -> list[tf.Tensor]:
        _need_no_compressor(compression)
        return reducescatter_op.grouped_reducescatter(tensors, op, name=name, process_set=process_set)

    return reduce


def _need_no_compressor(compression: AnyCompression) -> None:
    if not isinstance(Compression.of(compression), Compression):
        raise errors.ConfigError(
            "averages and factors of integers are computed in 64-bit integers, of which a compression of your own "
            f"would see nothing; received compression={compression!r}. Cast the tensor to float32 before, or omit it."
        )


def _check_flag(ignore_name_scope: Any) -> None:
    if not isinstance(ignore_name_scope, bool):
        raise errors.ConfigError(
            f"ignore_name_scope must be True or False; received {ignore_name_scope!r}. Pass a process set by "
            "keyword, as in process_set=pair."
        )
