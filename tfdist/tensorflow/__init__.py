"""Horovod's names for TensorFlow: `import tfdist.tensorflow as hvd` in place of `import horovod.tensorflow as hvd`.

Contains signatures that differ from tfdist's own; everything else is re-exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf
from keras import optimizers

from tfdist import errors, facade
from tfdist.facade import *  # noqa: F403
from tfdist.ops.broadcast import broadcast_
from tfdist.ops.compression import AnyCompression, Compression
from tfdist.ops.graph import call
from tfdist.ops.reduction import Average, ReduceOp
from tfdist.ops.topology import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from tfdist.tensorflow import data, elastic
from tfdist.tensorflow.collective import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from tfdist.tensorflow.session import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
)
from tfdist.tensorflow.session_optimizer import SessionOptimizer
from tfdist.training import optimizer as optimizer_module
from tfdist.training.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from tfdist.training.gradients import GradientReduction, Grouping
from tfdist.world.process_sets import ProcessSet, global_process_set

__all__ = [
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "data",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += facade.__all__


def _refuse(name: str) -> NoReturn:
    facade.refuse(__name__, name)


if not TYPE_CHECKING:  # where it is seen, any name is one
    __getattr__ = _refuse


def DistributedOptimizer(  # noqa: N802, PLR0913 -- name and signature are Horovod's
    optimizer: optimizers.Optimizer | tf.compat.v1.train.Optimizer,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> optimizers.Optimizer | tf.compat.v1.train.Optimizer:
    """`tfdist.DistributedOptimizer`, with Horovod's argument order for TensorFlow.

    Args:
        optimizer: As in `tfdist.DistributedOptimizer`, like all arguments not described here; or an optimizer of
            `tf.compat.v1.train`, for a graph that a session runs.
        name: Name of the returned optimizer.
        use_locking: For an optimizer of `tf.compat.v1.train`, as there. Else it must be False: Keras 3 optimizers have
            no locks.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: Compression on the wire.
        sparse_as_dense: Whether `tf.IndexedSlices` are made dense.
        backward_passes_per_step: Steps for one update.
        op: The reduction.
        gradient_predivide_factor: Part of the division before the sum.
        average_aggregated_gradients: Whether the steps of an update are averaged.
        num_groups: Number of collectives.
        groups: Variables of each collective.
        process_set: The ranks that take part.
        scale_local_gradients: Whether gradients of local variables are divided.

    Raises:
        ConfigError: If an argument is invalid.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
        call.number_of(process_set)
        reduction = GradientReduction(
            op,
            Compression.of(compression),
            sparse_as_dense,
            gradient_predivide_factor,
            Grouping.of(num_groups, groups),
            scale_local_gradients,
            process_set,
        )
        return SessionOptimizer(
            optimizer, name, use_locking, reduction, backward_passes_per_step, average_aggregated_gradients
        )
    if use_locking:
        raise errors.ConfigError("use_locking=True is not supported: Keras 3 optimizers have no locks. Omit it.")
    return optimizer_module.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
