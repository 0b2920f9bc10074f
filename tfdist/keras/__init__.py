"""Horovod's names for Keras: `import tfdist.keras as hvd` in place of `import horovod.tensorflow.keras as hvd`.

Contains signatures that differ from tfdist's own, and `load_model`; everything else is re-exported.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import keras
import tensorflow as tf

from tfdist import errors, facade
from tfdist.facade import *  # noqa: F403
from tfdist.keras import callbacks, elastic
from tfdist.ops import allgather as allgather_op
from tfdist.ops import allreduce as allreduce_op
from tfdist.ops import broadcast as broadcast_op
from tfdist.ops import reducescatter as reducescatter_op
from tfdist.ops.alltoall import alltoall
from tfdist.ops.broadcast import broadcast_variables
from tfdist.ops.compression import AnyCompression, Compression
from tfdist.ops.object import allgather_object, broadcast_object, broadcast_object_fn
from tfdist.ops.reduction import Average, ReduceOp, reduction_of
from tfdist.training import model_optimizer
from tfdist.training import optimizer as optimizer_module
from tfdist.training.optimizer import DistributedOptimizer
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set

__all__ = [
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += facade.__all__


_logger = logging.getLogger("tfdist")
_MEAN = (
    "the optimizer of the loaded model accumulates the gradients of %d steps, and an update takes their mean. "
    "DistributedOptimizer(backward_passes_per_step=...) takes their sum by default, which no file knows: write "
    "load_model(..., average_aggregated_gradients=False) for the sum, or True for the mean without this line."
)


def _refuse(name: str) -> NoReturn:
    facade.refuse(__name__, name)


if not TYPE_CHECKING:  # where it is seen, any name is one
    __getattr__ = _refuse


def PartialDistributedOptimizer(  # noqa: N802, PLR0913 -- name and signature are Horovod's
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: keras.layers.Layer | Collection[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
) -> keras.optimizers.Optimizer:
    """`tfdist.PartialDistributedOptimizer`, with Horovod's argument order for Keras.

    Args:
        optimizer: As in `tfdist.PartialDistributedOptimizer`, like all other arguments.
        name: Name of the returned optimizer.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: Compression on the wire.
        sparse_as_dense: Whether `tf.IndexedSlices` are made dense.
        gradient_predivide_factor: Part of the division before the sum.
        op: The reduction.
        groups: Variables of each collective.
        process_set: The ranks that take part.
        local_layers: Layers whose gradients stay local to their rank.
        scale_local_gradients: Whether gradients of these layers are divided by the number of ranks.
        backward_passes_per_step: Steps for one update.
        average_aggregated_gradients: Whether the steps of an update are averaged.
        num_groups: Number of collectives.
    """
    return optimizer_module.PartialDistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: AnyCompression = Compression.none,
) -> Any:
    """Reduces one value over all ranks, with Horovod's argument order for Keras.

    Args:
        value: As `tensor` in `tfdist.allreduce`. For an average, or with a factor, integers become `floatx()` of Keras.
        name: As in `tfdist.allreduce`.
        average: As in `tfdist.allreduce`.
        prescale_factor: As in `tfdist.allreduce`.
        postscale_factor: As in `tfdist.allreduce`.
        op: As in `tfdist.allreduce`.
        compression: As in `tfdist.allreduce`.

    Example:

    ```python
    score = hvd.allreduce(score, name="score")
    ```
    """
    if reduction_of(average, op) is Average or prescale_factor != 1 or postscale_factor != 1:
        value = _with_fractions(value)
    return allreduce_op.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> tf.Tensor:
    """Concatenates the values of all ranks; see `tfdist.allgather`.

    Args:
        value: As `tensor` of `tfdist.allgather`.
        name: As in `tfdist.allgather`.
    """
    return allgather_op.allgather(value, name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """Returns the value of one rank on every rank; see `tfdist.broadcast`.

    Args:
        value: As `tensor` of `tfdist.broadcast`.
        root_rank: As in `tfdist.broadcast`.
        name: As in `tfdist.broadcast`.
    """
    return broadcast_op.broadcast(value, root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> tf.Tensor:
    """Returns this rank's rows of the reduction over all ranks; see `tfdist.reducescatter`.

    Args:
        value: As `tensor` of `tfdist.reducescatter`. For an average, integers become `floatx()` of Keras.
        name: As in `tfdist.reducescatter`.
        op: As in `tfdist.reducescatter`.
    """
    return reducescatter_op.reducescatter(_with_fractions(value) if op is Average else value, op=op, name=name)


def _with_fractions(value: Any) -> Any:
    """Integers as `floatx()` of Keras; anything else as it is."""
    if isinstance(value, tf.IndexedSlices) or not tf.convert_to_tensor(value).dtype.is_integer:
        return value
    return tf.cast(value, keras.config.floatx())


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: AnyCompression = Compression.none,
    legacy_opts: bool = False,
    average_aggregated_gradients: bool | None = None,
) -> keras.Model:
    """Loads a saved model and makes its optimizers distributed, with their state.

    You need it to continue training on several ranks from a file of `model.save`, written by one process or many. Every
    rank loads the file; the learning rate is the one in the file.

    Args:
        filepath: As in `keras.saving.load_model`.
        custom_optimizers: Custom optimizer classes that the file may contain.
        custom_objects: As in `keras.saving.load_model`.
        compression: As in `tfdist.DistributedOptimizer`.
        legacy_opts: Must be False: Keras 3 has no legacy optimizers.
        average_aggregated_gradients: Of an optimizer that accumulates gradients, as one with `backward_passes_per_step`
            does: whether an update takes their mean, or their sum, which is the default of `DistributedOptimizer`. The
            file does not know. None takes the mean, as Keras does, and rank 0 warns.

    Raises:
        ConfigError: If the compression is unknown, or `legacy_opts` is True.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    model = hvd.load_model("model.keras")
    model.fit(tfdist.shard(dataset), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    ```
    """
    runtime.rank()
    if legacy_opts:
        raise errors.ConfigError("legacy_opts=True is not supported: Keras 3 has no legacy optimizers. Omit it.")
    compression = Compression.of(compression)
    objects = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = keras.saving.load_model(filepath, custom_objects=objects)
    for each in model_optimizer.optimizers_of(model):
        optimizer_module.distribute(each, compression=compression)
        steps = getattr(each, "inner_optimizer", each).gradient_accumulation_steps or 1
        if steps > 1 and average_aggregated_gradients is None and runtime.rank() == 0:
            _logger.warning(_MEAN, steps)
        if average_aggregated_gradients is False:
            optimizer_module.sum_accumulated(each)
    return model
