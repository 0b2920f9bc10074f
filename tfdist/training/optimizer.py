"""Makes a Keras optimizer reduce gradients over all ranks, once per update, at the right place.

The order is: accumulate locally, reduce once per update, finite check agreed on by all ranks, clip, update.

- A plain optimizer is intercepted in `_clip_gradients`, which Keras calls once per update, after its own accumulation
  and before clipping.
- A `LossScaleOptimizer` decides by a finite check whether to update. Gradients are reduced before the check, so every
  rank checks the same numbers. With accumulation in the inner optimizer the check runs on every step, but the
  reduction must not; then the ranks agree on the check by one scalar, and the inner optimizer reduces.
- Gradients of local variables are not reduced. What is decided from all gradients together, the finite check and the
  global norm, is then agreed by one scalar each, so that the shared variables stay the same on every rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import errors
from tfdist.native import keras_version
from tfdist.ops.compression import AnyCompression, Compression, Compressor
from tfdist.ops.graph import call
from tfdist.ops.reduction import Adasum, Average, ReduceOp
from tfdist.training.distribution import Distributed, DistributedLossScale, Distribution, Holding, Observer
from tfdist.training.gradients import GradientReduction, Grouping, name_of, record_of
from tfdist.training.local_variable import LocalVariables, key_of
from tfdist.training.schedule import (
    ScaledSchedule,
    UnscaledRate,
    note_learning_rate_scale,
    rates_in_files,
    scale_in_checkpoints,
)
from tfdist.training.schedule import learning_rate_scale as learning_rate_scale
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set


class _Registering:
    """Mixed into the class of every distributed optimizer."""

    _tfdist: Distribution

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable local to this rank: it is not reduced.

        You need it if each rank has its own variable, such as a shard of an embedding table. With
        `scale_local_gradients` its gradient is divided by the number of ranks, as for a loss that is the mean of the
        ranks' losses. Weights and slots of local variables are not broadcast, and `global_clipnorm` includes those of
        all ranks.

        If ranks have different numbers of local variables and use a `LossScaleOptimizer` or `global_clipnorm`, use
        `PartialDistributedOptimizer` on every rank, so that ranks without any take part in the agreement.

        Args:
            var: `keras.Variable` or `tf.Variable`, treated as the same if one wraps the other.

        Raises:
            ConfigError: If it is not a variable, or a compiled step already reduces its gradient.
        """
        if not isinstance(var, (keras.Variable, tf.Variable)):
            raise errors.ConfigError(
                f"register_local_var expects one keras.Variable or tf.Variable; received {var!r}. Call it once per "
                "variable; for whole layers use PartialDistributedOptimizer(..., local_layers=...)."
            )
        if self._tfdist.traced and var not in self._tfdist.local:
            raise errors.ConfigError(
                f"{name_of(var)} is registered too late: a compiled step already reduces its gradient. Register "
                "local variables before the first step."
            )
        self._tfdist.local.add(var)


def DistributedOptimizer(  # noqa: N802, PLR0913 -- name and signature are Horovod's
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Returns a Keras optimizer that reduces gradients over all ranks before it applies them.

    You need it if you compile the model yourself or write the training loop; `tfdist.callbacks.DataParallel` wraps the
    optimizer of a compiled model by itself. Class name and configuration stay those of `optimizer`, so a saved model
    loads without tfdist installed. Gradient accumulation, clipping, weight decay, moving averages and
    `LossScaleOptimizer` act on the reduced gradient.

    With `op=Average` the gradient is the mean of the ranks' gradients. If the loss is a mean over the batch, this
    equals one process on the concatenated batch if all ranks have batches of equal size; otherwise it equals one
    process that gives each sample of rank r the weight B / (n * b_r), for B samples in all, n ranks and b_r samples on
    rank r.

    Args:
        optimizer: Not yet built; the returned optimizer is a copy.
        name: Name of the returned optimizer; default: that of `optimizer`.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: A member of `tfdist.Compression`, its name, or a custom `Compressor`.
        sparse_as_dense: Whether a `tf.IndexedSlices` gradient is made dense and reduced; otherwise it is gathered,
            without compression.
        gradient_predivide_factor: With Average, divides by this before the sum and by the rest after.
        op: `Average`, `Sum` or `Adasum` (per gradient; dense gradients only).
        backward_passes_per_step: Steps whose gradients are summed on each rank for one update: the copy's
            `gradient_accumulation_steps`. Files store that number, and Keras without tfdist takes the mean.
        average_aggregated_gradients: Whether the update takes the mean of these gradients, not their sum.
        num_groups: Number of collectives that the gradients are split into, in order; 0 makes buckets of
            `TFDIST_FUSION_THRESHOLD` bytes, last layer first, on GPUs and with a communication thread; otherwise one.
        groups: A number, as `num_groups`, or lists of variables: one collective per list and one for the rest.
        process_set: The ranks that take part; on others the gradients are unchanged.
        scale_local_gradients: Whether gradients of local variables (see `register_local_var` of the returned
            optimizer) are divided by the number of ranks, with any `op`.

    Raises:
        ConfigError: If an argument is invalid.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01 * tfdist.size(), momentum=0.9))
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    ```
    """
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
    copy = _copy(optimizer, name)
    _accumulate(copy, backward_passes_per_step)
    distribution = _install(copy, reduction)
    if not average_aggregated_gradients:
        distribution.factor = float(backward_passes_per_step)
    return copy


def PartialDistributedOptimizer(  # noqa: N802, PLR0913 -- name and signature are Horovod's
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: keras.layers.Layer | Collection[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Returns a `DistributedOptimizer` that keeps the gradients of some layers local to their rank.

    You need it if layers differ by rank, such as the shards of an embedding table. The layers' weights are not
    broadcast or averaged either.

    Args:
        optimizer: As in `DistributedOptimizer`, like all arguments not described here.
        name: Name of the returned optimizer.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: Of the gradients that are reduced.
        sparse_as_dense: Of the gradients that are reduced.
        gradient_predivide_factor: Of the gradients that are reduced.
        op: Of the gradients that are reduced.
        backward_passes_per_step: Of all gradients.
        average_aggregated_gradients: Of all gradients.
        num_groups: Of the gradients that are reduced.
        groups: Of the gradients that are reduced.
        process_set: The ranks that take part.
        local_layers: One or more Keras layers, built or not; they may differ by rank, also in number.
        scale_local_gradients: Whether the gradients of these layers are divided by the number of ranks.

    Raises:
        ConfigError: If an argument is invalid.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    optimizer = tfdist.PartialDistributedOptimizer(keras.optimizers.Adam(), local_layers=[part_of_table])
    ```
    """
    local = LocalVariables()
    local.add_layers(local_layers)
    distributed = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    distributed._tfdist.local = local
    return distributed


def distribute(
    optimizer: keras.optimizers.Optimizer,
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Makes an existing optimizer distributed, in place, and returns it.

    You need it for an optimizer that is compiled into a model or has state. A `train_function` traced before must be
    traced again. On a distributed optimizer it replaces the settings; local variables stay registered.

    Args:
        optimizer: A Keras 3 optimizer, built or not.
        compression: As in `DistributedOptimizer`.
        sparse_as_dense: As in `DistributedOptimizer`.
        gradient_predivide_factor: As in `DistributedOptimizer`.
        op: As in `DistributedOptimizer`.
        scale_local_gradients: As in `DistributedOptimizer`.

    Raises:
        ConfigError: If an argument is invalid.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    tfdist.optimizer.distribute(model.optimizer, compression="fp16")
    ```
    """
    _install(
        optimizer,
        GradientReduction(
            op,
            Compression.of(compression),
            sparse_as_dense,
            gradient_predivide_factor,
            scale_local=scale_local_gradients,
        ),
    )
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether the optimizer reduces its gradients over all ranks."""
    return _distribution_of(optimizer) is not None


def scale_learning_rate(optimizer: keras.optimizers.Optimizer, factor: float) -> None:
    """Makes the learning rate `factor` times that of one process; calling it again changes the factor.

    Files, and checkpoints of TensorFlow, store the rate of one process.

    Args:
        optimizer: A distributed optimizer whose rate is a number or a `LearningRateSchedule`.
        factor: Greater than 0.

    Raises:
        ConfigError: If the rate is a function, whose result cannot be saved unscaled.
    """
    if not factor > 0:
        raise errors.ConfigError(f"the factor of the learning rate must be greater than 0; received {factor}.")
    inner = keras_version.inner_optimizer(optimizer)
    source = keras_version.learning_rate_of(inner)
    if isinstance(source, ScaledSchedule):
        source.factor.assign(factor)
    elif isinstance(source, keras.optimizers.schedules.LearningRateSchedule):
        keras_version.set_learning_rate_source(inner, ScaledSchedule(source, factor))
    elif isinstance(source, keras.Variable):
        source.assign(source * (factor / learning_rate_scale(inner)))
        scale_in_checkpoints(source, lambda: learning_rate_scale(inner))
    else:
        raise errors.ConfigError(
            f"the learning rate is {source!r}, which cannot be scaled: use a number or a LearningRateSchedule, or "
            "scale it yourself and pass scale_learning_rate=False."
        )
    note_learning_rate_scale(inner, factor)


def unscaled_learning_rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    """The rate of one process, or None if it is a schedule or a function."""
    source = keras_version.learning_rate_of(optimizer)
    if not isinstance(source, keras.Variable):
        return None
    return float(source.numpy()) / learning_rate_scale(optimizer)


def set_compression(optimizer: keras.optimizers.Optimizer, compression: Compressor | type[Compressor]) -> bool:
    """Changes only the compression of a distributed optimizer; returns whether it was different before.

    Then trace `train_function` again.
    """
    distribution = _distribution_of(optimizer)
    assert distribution is not None
    changed = distribution.reduction.compression is not compression
    distribution.reduction = dataclasses.replace(distribution.reduction, compression=compression)
    return changed


def sum_accumulated(optimizer: keras.optimizers.Optimizer) -> None:
    """An update of a distributed optimizer takes the sum of accumulated gradients; Keras takes their mean."""
    distribution = _distribution_of(optimizer)
    assert distribution is not None
    distribution.factor = float(keras_version.inner_optimizer(optimizer).gradient_accumulation_steps or 1)


def set_label(optimizer: keras.optimizers.Optimizer, label: str) -> None:
    """Sets the name of the optimizer's reduction in errors; it must be the same on every rank."""
    optimizer._tfdist.label = label


def observe(optimizer: keras.optimizers.Optimizer | None, what: str, observer: Observer) -> bool:
    """Passes the gradients of each update to an observer, replacing any with the same name. Returns whether it is new:
    a `train_function` traced before must then be traced again.

    Raises:
        ConfigError: If the optimizer is not distributed over all ranks, or combines gradients by Adasum.
    """
    distribution = _distribution_of(optimizer)
    if distribution is None:
        raise errors.ConfigError(
            f"the {what} needs a distributed optimizer. Put the callback after DataParallel in the list, or compile "
            "the model with DistributedOptimizer."
        )
    if distribution.reduction.op is Adasum:
        raise errors.ConfigError(f"the {what} needs the mean of the gradients; received op=Adasum.")
    if distribution.reduction.process_set is not global_process_set:
        raise errors.ConfigError(f"the {what} needs the gradients of all ranks; received a process set.")
    changed = distribution.observers.get(what) != observer
    distribution.observers[what] = observer
    return changed


def reduction_of(optimizer: keras.optimizers.Optimizer) -> GradientReduction:
    """How a distributed optimizer reduces its gradients."""
    distribution = _distribution_of(optimizer)
    assert distribution is not None
    return distribution.reduction


def local_variables(optimizer: keras.optimizers.Optimizer | None) -> list[Any]:
    """The variables whose gradients a distributed optimizer keeps local to this rank; none for any other optimizer."""
    distribution = _distribution_of(optimizer)
    return [] if distribution is None else distribution.local.variables()


def local_layers(optimizer: keras.optimizers.Optimizer | None) -> list[keras.layers.Layer]:
    """The layers that a distributed optimizer keeps local to this rank; none for any other optimizer."""
    distribution = _distribution_of(optimizer)
    return [] if distribution is None else distribution.local.layers


def has_local_variables(optimizer: keras.optimizers.Optimizer | None) -> bool:
    """Whether ranks may have local variables; the same on every rank, even on one that has none."""
    distribution = _distribution_of(optimizer)
    return distribution is not None and distribution.local.partial


def state_of_rank(optimizer: keras.optimizers.Optimizer | None, local: Iterable[Any] = ()) -> list[Any]:
    """The state that differs by rank: gradients being accumulated, local variables, and the optimizer's slots for them.

    Args:
        optimizer: A built optimizer, distributed or not, or None.
        local: Further local variables.
    """
    variables = [*local, *local_variables(optimizer)]
    if optimizer is None:
        return variables
    keys = {key_of(variable) for variable in variables}
    slots = [slot for variable, slot in keras_version.slots(optimizer) if key_of(variable) in keys]
    parts = [*variables, *slots, *keras_version.accumulators(optimizer)]
    return list({id(part): part for part in parts}.values())


def _copy(optimizer: Any, name: str | None) -> keras.optimizers.Optimizer:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise errors.ConfigError(f"optimizer must be a Keras 3 optimizer; received {type(optimizer)}.")
    if is_distributed(optimizer):
        raise errors.ConfigError("the optimizer is already distributed; wrap it only once.")
    if optimizer.built:
        raise errors.ConfigError(
            "the optimizer is already built, so a copy would lose its state. Use "
            "tfdist.optimizer.distribute(optimizer), which changes it in place."
        )
    renamed = {} if name is None else {"name": name}
    try:
        copy = type(optimizer).from_config({**optimizer.get_config(), **renamed})
    except Exception as error:
        raise errors.ConfigError(
            f"the optimizer is copied by its get_config and from_config, which failed: {type(error).__name__}: "
            f"{error}. Complete them; or use DataParallel() or tfdist.optimizer.distribute(optimizer), which copy "
            "nothing."
        ) from error
    keras_version.complete_copy(optimizer, copy)
    return copy


def _distribution_of(optimizer: Any) -> Distribution | None:
    """A `LossScaleOptimizer` around a distributed optimizer shares its distribution."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not hasattr(type(optimizer), "_tfdist_base"):
        inner: Distribution | None = getattr(optimizer.inner_optimizer, "_tfdist", None)
        return None if inner is None else _install(optimizer, inner.reduction)
    return getattr(optimizer, "_tfdist", None)


@contextlib.contextmanager
def _reduced_before_check(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> Iterator[Sequence[Any]]:
    """For a `LossScaleOptimizer`: the finite check must see the same gradients on every rank.

    Only inside: a script may use the inner optimizer without it before and after.
    """
    distribution = _distribution_of(optimizer)
    variables = keras_version.variables_in(optimizer) if variables is None else variables
    if distribution is None:
        _refuse_local(variables)
    if distribution is None or optimizer.inner_optimizer.gradient_accumulation_steps:
        yield gradients
        return
    reduced = distribution.reduce(gradients, variables)
    distribution.is_reduced = True
    try:
        yield reduced
    finally:
        distribution.is_reduced = False


def _refuse_local(variables: Iterable[Any]) -> None:
    """A tape keeps some gradients local and has reduced others, and the optimizer knows nothing of it."""
    records = [(variable, record) for variable in variables if (record := record_of(variable)) is not None]
    kept = [name_of(variable) for variable, record in records if record.process_set is None]
    if kept and len(kept) < len(records) and runtime.size() > 1:
        raise errors.ConfigError(
            f"a LossScaleOptimizer decides by all gradients whether to update; that of {kept[0]} is only this rank's "
            "(register_local_source), so the ranks would skip different steps. Keep it local by an optimizer instead: "
            "tfdist.PartialDistributedOptimizer(optimizer, local_layers=...), and no tape of tfdist's."
        )


@functools.cache
def _reach_keras() -> None:
    """Loss scaling and files of whole models take part in what optimizers and tapes of tfdist do."""
    keras_version.prepare_loss_scaling(_reduced_before_check)
    keras_version.replace_in_h5(rates_in_files)


def _install(optimizer: keras.optimizers.Optimizer, reduction: GradientReduction) -> Distribution:
    """Changes the classes of the optimizer and the one inside it."""
    runtime.rank()
    _reach_keras()
    known = getattr(optimizer, "_tfdist", None) or getattr(keras_version.inner_optimizer(optimizer), "_tfdist", None)
    distribution: Distribution = known or Distribution(reduction)
    distribution.reduction = reduction
    for part in dict.fromkeys((optimizer, keras_version.inner_optimizer(optimizer))):
        base: type = getattr(type(part), "_tfdist_base", type(part))
        scales = isinstance(part, keras.optimizers.LossScaleOptimizer)
        part.__class__ = _loss_scale_class(base) if scales else _reducing_class(base)
        part._tfdist = distribution
    return distribution


def _accumulate(optimizer: keras.optimizers.Optimizer, steps: Any) -> None:
    """Makes an unbuilt optimizer accumulate gradients."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise errors.ConfigError(f"backward_passes_per_step must be a number, 1 or more; received {steps!r}.")
    inner = keras_version.inner_optimizer(optimizer)
    if steps == 1:
        return
    if inner.gradient_accumulation_steps:
        raise errors.ConfigError(
            f"the optimizer already accumulates gradients (gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps}); received backward_passes_per_step={steps} too. Set only one."
        )
    inner.gradient_accumulation_steps = steps


class _FromConfig:
    """`from_config` of a distributed optimizer: makes one that reduces in the same way, without local variables."""

    def __get__(self, optimizer: Any, kind: Any) -> Callable[..., keras.optimizers.Optimizer]:
        def from_config(config: dict[str, Any], *more: Any) -> keras.optimizers.Optimizer:
            if optimizer is None:
                raise errors.ConfigError(
                    f"{kind.__name__} of a distributed optimizer does not know how that reduces its gradients. Call "
                    "optimizer.from_config(config) instead of type(optimizer).from_config(config), or make the "
                    f"optimizer by keras.optimizers.{kind.__name__} and DistributedOptimizer."
                )
            made: keras.optimizers.Optimizer = kind._tfdist_base.from_config(config, *more)
            _install(made, optimizer._tfdist.reduction).factor = optimizer._tfdist.factor
            return made

        return from_config


def _subclass(base: type, *mixins: type) -> type:
    namespace = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    own = {"_tfdist_base": base, "from_config": _FromConfig()}
    subclass = type(base.__name__, (*mixins, Holding, base), namespace | own)
    keras_version.publish_as(subclass, base)
    return subclass


@functools.cache
def _reducing_class(base: type) -> type:
    return _subclass(base, Distributed, _Registering, UnscaledRate)


@functools.cache
def _loss_scale_class(base: type) -> type:
    return _subclass(base, DistributedLossScale, _Registering, UnscaledRate)
