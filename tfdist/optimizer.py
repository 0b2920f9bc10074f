"""Makes a Keras optimizer reduce gradients over all ranks, once per update, at the one right place.

The order is: accumulate locally, reduce once per update, finite check agreed by all ranks, clip, update.

- A plain optimizer is met in `_clip_gradients`, which Keras calls once per update, after its own accumulation and
  before clipping.
- A `LossScaleOptimizer` decides by a finite check whether to update. Gradients are reduced before the check, so every
  rank checks the same numbers. With accumulation in the inner optimizer the check runs on every step, but the
  reduction must not; then the ranks agree on the check by one scalar, and the inner optimizer reduces.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist import _compat, errors, runtime
from tfdist.compression import Compression
from tfdist.gradients import GradientReduction
from tfdist.ops import allreduce, call
from tfdist.reduction import Average, Min, ReduceOp
from tfdist.schedule import ScaledSchedule

_LABEL = "gradients"


@dataclass
class _Distribution:
    """What a distributed optimizer remembers. Not written to files."""

    reduction: GradientReduction
    names: list[str] = field(default_factory=list)


class _Distributed:
    """Mixed into the class of a Keras optimizer; adds no variable and no configuration."""

    _tfdist: _Distribution

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        self._tfdist.names = _names(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        reduced = self._tfdist.reduction.reduce(grads, self._tfdist.names, _LABEL)
        return super()._clip_gradients(reduced)  # type: ignore[misc]


class _DistributedLossScale:
    """Mixed into the class of a `LossScaleOptimizer`."""

    _tfdist: _Distribution
    inner_optimizer: Any

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        if not _accumulates(self.inner_optimizer):
            variables = trainable_variables
            if variables is None:
                variables = self._trainable_variables  # type: ignore[attr-defined]
            grads = self._tfdist.reduction.reduce(grads, _names(variables), _LABEL)
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def check_finite(self, grads: Sequence[Any]) -> tf.Tensor:
        finite = super().check_finite(grads)  # type: ignore[misc]
        if not _accumulates(self.inner_optimizer):
            return finite
        return allreduce.allreduce(finite, op=Min, name="gradients are finite")


class _UnscaledRate:
    """Mixed into a distributed optimizer: what goes to a file is the rate of one process.

    A file then continues at the right rate in one process, and a later job scales it for its own size. A
    `LossScaleOptimizer` writes the variables of its inner optimizer too.
    """

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        source = _compat.learning_rate_of(self)
        if "learning_rate" not in config:  # a LossScaleOptimizer: its inner optimizer writes it
            return config
        if isinstance(source, ScaledSchedule):
            config["learning_rate"] = keras.optimizers.schedules.serialize(source.schedule)
        elif isinstance(config["learning_rate"], float):
            config["learning_rate"] /= learning_rate_scale(self)
        return config

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        source, factor = _compat.learning_rate_of(self), learning_rate_scale(self)
        for index, variable in enumerate(self.variables):  # type: ignore[attr-defined]
            if variable is source and factor != 1.0:
                rate = variable.numpy()
                del store[str(index)]
                store[str(index)] = rate / rate.dtype.type(factor)

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)  # type: ignore[misc]
        source, factor = _compat.learning_rate_of(self), learning_rate_scale(self)
        if isinstance(source, keras.Variable) and factor != 1.0:
            source.assign(source * factor)


def DistributedOptimizer(  # noqa: N802  (the name is Horovod's)
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression | str = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
) -> keras.optimizers.Optimizer:
    """Returns a Keras optimizer that reduces gradients over all ranks before it applies them.

    You need it where you compile the model yourself or write the training loop; `tfdist.callbacks.DataParallel` wraps
    the optimizer of a compiled model by itself. Class name and configuration stay those of `optimizer`, so a saved
    model loads where tfdist is not installed. Gradient accumulation, clipping, weight decay, moving averages and
    `LossScaleOptimizer` act on the reduced gradient.

    With `op=Average` the gradient is the mean of the ranks' gradients. Where the loss is a mean over the batch this
    equals one process on the concatenated batch if all ranks have equally large batches; otherwise it equals one
    process that gives each sample of rank r the weight B / (n * b_r), for B samples in all, n ranks and b_r samples
    on rank r.

    Args:
        optimizer: Not yet built, or built; its state is kept by a built one only through `optimizer.variables`
            of the returned optimizer, which starts from the configuration.
        name: Name of the returned optimizer; default: that of `optimizer`.
        device_dense: Only "".
        device_sparse: Only "".
        compression: `Compression.none`, `.fp16` or `.bf16`, or its name.
        sparse_as_dense: Whether a `tf.IndexedSlices` gradient is made dense and reduced; otherwise gathered.
        gradient_predivide_factor: With Average, divides by this before the sum and by the rest after.
        op: `Average` or `Sum`.

    Raises:
        ConfigError: If an argument cannot be honoured.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01 * tfdist.size(), momentum=0.9))
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    ```
    """
    call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise errors.ConfigError(f"optimizer must be a Keras 3 optimizer; received {type(optimizer)}.")
    if is_distributed(optimizer):
        raise errors.ConfigError("the optimizer is distributed already; wrap it once.")
    if optimizer.built:
        raise errors.ConfigError(
            "the optimizer is built already, and a copy would lose its state. Use "
            "tfdist.optimizer.distribute(optimizer), which changes it in place."
        )
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    copy = type(optimizer).from_config(config)
    return distribute(
        copy,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
    )


def distribute(
    optimizer: keras.optimizers.Optimizer,
    compression: Compression | str = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
) -> keras.optimizers.Optimizer:
    """Makes an existing optimizer distributed, in place, and returns it.

    You need it for an optimizer that is compiled into a model or has state. A `train_function` traced before must be
    made again. On a distributed optimizer it replaces the settings.

    Args:
        optimizer: A Keras 3 optimizer, built or not.
        compression: As in `DistributedOptimizer`.
        sparse_as_dense: As in `DistributedOptimizer`.
        gradient_predivide_factor: As in `DistributedOptimizer`.
        op: As in `DistributedOptimizer`.

    Raises:
        ConfigError: If an argument cannot be honoured.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    tfdist.optimizer.distribute(model.optimizer, compression="fp16")
    ```
    """
    runtime.rank()
    reduction = GradientReduction(op, Compression.of(compression), sparse_as_dense, gradient_predivide_factor)
    reducing = _reducing(optimizer)
    for part in dict.fromkeys((optimizer, reducing, _compat.inner_optimizer(optimizer))):
        base: type = getattr(type(part), "_tfdist_base", type(part))
        if isinstance(part, keras.optimizers.LossScaleOptimizer):
            part.__class__ = _loss_scale_class(base)
        elif part is reducing:
            part.__class__ = _reducing_class(base)
        else:
            part.__class__ = _rate_class(base)
        part._tfdist = _Distribution(reduction)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether the optimizer reduces its gradients over all ranks."""
    return hasattr(type(optimizer), "_tfdist_base")


def scale_learning_rate(optimizer: keras.optimizers.Optimizer, factor: float) -> None:
    """Makes the learning rate `factor` times that of one process; calling it again changes the factor.

    Files keep the rate of one process.

    Args:
        optimizer: A distributed optimizer whose rate is a number or a `LearningRateSchedule`.
        factor: More than 0.

    Raises:
        ConfigError: If the rate is a function, whose result cannot be written to a file unscaled.
    """
    if not factor > 0:
        raise errors.ConfigError(f"the factor of the learning rate must be more than 0; received {factor}.")
    inner = _compat.inner_optimizer(optimizer)
    source = _compat.learning_rate_of(inner)
    if isinstance(source, ScaledSchedule):
        source.factor.assign(factor)
    elif isinstance(source, keras.optimizers.schedules.LearningRateSchedule):
        _compat.set_learning_rate_source(inner, ScaledSchedule(source, factor))
    elif isinstance(source, keras.Variable):
        source.assign(source * (factor / learning_rate_scale(inner)))
    else:
        raise errors.ConfigError(
            f"the learning rate is {source!r}, which cannot be scaled: use a number or a LearningRateSchedule, or "
            "scale it yourself and pass scale_learning_rate=False."
        )
    inner._tfdist_rate_factor = float(factor)


def learning_rate_scale(optimizer: keras.optimizers.Optimizer) -> float:
    """The factor that `scale_learning_rate` set, 1.0 where it did not."""
    return float(getattr(_compat.inner_optimizer(optimizer), "_tfdist_rate_factor", 1.0))


def unscaled_learning_rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    """The rate of one process, or None where it is a schedule or a function."""
    source = _compat.learning_rate_of(optimizer)
    if not isinstance(source, keras.Variable):
        return None
    return float(source) / learning_rate_scale(optimizer)


def set_compression(optimizer: keras.optimizers.Optimizer, compression: Compression) -> bool:
    """Changes the compression of a distributed optimizer and nothing else; returns whether it was another one.

    A `train_function` traced before must be made again if it was.
    """
    distribution: _Distribution = optimizer._tfdist
    changed = distribution.reduction.compression is not compression
    for part in (optimizer, _compat.inner_optimizer(optimizer)):
        part._tfdist.reduction = dataclasses.replace(distribution.reduction, compression=compression)
    return changed


def _accumulates(optimizer: Any) -> bool:
    return bool(optimizer.gradient_accumulation_steps)


def _reducing(optimizer: Any) -> Any:
    """The part whose gradients are those of one update."""
    inner = _compat.inner_optimizer(optimizer)
    return inner if inner is optimizer or _accumulates(inner) else optimizer


def _names(variables: Sequence[Any]) -> list[str]:
    """Names for errors, such as "2:dense/kernel".

    Keras numbers layers by what a process built before ("sequential_3/dense_7/kernel"), which may differ by rank: the
    position takes the place of these numbers.
    """
    paths = [getattr(variable, "path", None) or variable.name for variable in variables]
    short = ["/".join(re.sub(r"(_\d+)?(:0)?$", "", part) for part in path.split("/")[-2:]) for path in paths]
    return [f"{index}:{name}" for index, name in enumerate(short)]


def _subclass(base: type, *mixins: type) -> type:
    namespace = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    subclass = type(base.__name__, (*mixins, base), {**namespace, "_tfdist_base": base})
    _compat.publish_as(subclass, base)
    return subclass


@functools.cache
def _reducing_class(base: type) -> type:
    return _subclass(base, _Distributed, _UnscaledRate)


@functools.cache
def _rate_class(base: type) -> type:
    return _subclass(base, _UnscaledRate)


@functools.cache
def _loss_scale_class(base: type) -> type:
    return _subclass(base, _DistributedLossScale, _UnscaledRate)
