"""What is mixed into the class of a Keras optimizer so that it reduces gradients, and what its parts share.

Also updates that are held back when optimizers are asked for them, so that several can become one.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.native import keras_version
from tfdist.ops import allreduce
from tfdist.ops.graph import ranks
from tfdist.ops.reduction import Max, Sum
from tfdist.training.gradients import GradientReduction
from tfdist.training.local_variable import LocalVariables, key_of

# Takes the gradients of this rank, the same after the reduction, and what their mean over the ranks was multiplied by.
Observer = Callable[[Sequence[Any], Sequence[Any], float], None]


@dataclass
class Distribution:
    """The shared state of the parts of a distributed optimizer. Not saved to files.

    Attributes:
        reduction: How gradients are reduced.
        local: Variables whose gradients are not reduced.
        factor: Multiplies the reduced gradient: Keras takes the mean of accumulated gradients, Horovod the sum.
        variables: The variables whose gradients are passing through the optimizer.
        is_reduced: Whether those that are passing through are reduced already.
        traced: Whether a reduction is part of a `tf.function`, which later settings do not affect.
        observers: Functions that get the gradients before and after each reduction, by name.
        label: Name of the collective in errors.
    """

    reduction: GradientReduction
    local: LocalVariables = field(default_factory=LocalVariables)
    factor: float = 1.0
    variables: list[Any] = field(default_factory=list)
    traced: bool = False
    is_reduced: bool = False
    observers: dict[str, Observer] = field(default_factory=dict)
    label: str = "gradients"

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        self.traced = self.traced or not tf.executing_eagerly()
        replacing = _replacing(variables)
        if replacing:
            return self._reduce_beside(replacing, gradients, variables)
        reduced = self.reduction.reduce(gradients, variables, self.label, self.local, self.factor)
        if self.observers:
            local = self.local.keys()
            shared = [place for place, variable in enumerate(variables) if key_of(variable) not in local]
            factor = self.factor * (ranks.divisor_of(self.reduction.process_set) if self.reduction.op is Sum else 1)
            for observe in self.observers.values():
                observe([gradients[place] for place in shared], [reduced[place] for place in shared], factor)
        return reduced

    def _reduce_beside(self, replacing: list[int], gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        result = self.largest(gradients, variables)
        others = [place for place in range(len(result)) if place not in replacing]
        reduced = self.reduce([result[place] for place in others], [variables[place] for place in others])
        for place, gradient in zip(others, reduced, strict=True):
            result[place] = gradient
        return result

    def largest(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients, of which those that replace their variable are the largest of all ranks.

        So Keras accumulates the scales and the largest values of float8.
        """
        result, places = list(gradients), _replacing(variables)
        if places:
            values = [result[place] for place in places]
            group = self.reduction.process_set
            largest = allreduce.grouped_allreduce(values, op=Max, name="values of variables", process_set=group)
            for place, value in zip(places, largest, strict=True):
                result[place] = value
        return result


def _replacing(variables: Sequence[Any]) -> list[int]:
    """The places of those that Keras replaces with their gradients, as the scales of float8."""
    return [place for place, variable in enumerate(variables) if getattr(variable, "overwrite_with_gradient", False)]


class Distributed:
    """Mixed into the class of a Keras optimizer that holds rate and slots."""

    _tfdist: Distribution
    clipnorm: float | None
    global_clipnorm: float | None

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        self._tfdist.variables = list(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _overwrite_variables_directly_with_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> Any:  # noqa: A002
        if not self._tfdist.is_reduced:
            grads = self._tfdist.largest(grads, vars)
        return super()._overwrite_variables_directly_with_gradients(grads, vars)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Reduces those of an update, unless a `LossScaleOptimizer` around this one has."""
        distribution = self._tfdist
        if not distribution.is_reduced:
            grads = distribution.reduce(grads, distribution.variables)
        if self.clipnorm or not self.global_clipnorm or not distribution.local.partial:
            return super()._clip_gradients(grads)  # type: ignore[misc]
        norm = distribution.reduction.global_norm(grads, distribution.variables, distribution.local)
        # As in Keras, an IndexedSlices comes out dense.
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads]
        return tf.clip_by_global_norm(dense, self.global_clipnorm, use_norm=norm)[0]


class DistributedLossScale:
    """Mixed into the class of a `LossScaleOptimizer`, whose gradients `_reduced_before_check` reduces."""

    _tfdist: Distribution
    inner_optimizer: Any

    def check_finite(self, grads: Sequence[Any]) -> tf.Tensor:
        finite = super().check_finite(grads)  # type: ignore[misc]
        if not self.inner_optimizer.gradient_accumulation_steps and not self._tfdist.local.partial:
            return finite
        return self._tfdist.reduction.agree(finite)


@dataclass(frozen=True)
class Update:
    """What an optimizer was asked to apply.

    Attributes:
        optimizer: The optimizer.
        gradients: Tensor, `tf.IndexedSlices` or None each, not yet reduced over the ranks, clipped or unscaled.
        variables: The variable of each gradient.
    """

    optimizer: Any
    gradients: Sequence[Any]
    variables: Sequence[Any]


_held: contextvars.ContextVar[list[Update] | None] = contextvars.ContextVar("held", default=None)


@contextlib.contextmanager
def held() -> Iterator[list[Update]]:
    """Inside, a distributed optimizer applies and counts nothing: its updates are added to the list instead."""
    updates: list[Update] = []
    token = _held.set(updates)
    try:
        yield updates
    finally:
        _held.reset(token)


class Holding:
    """Mixed into the class of every distributed optimizer."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        updates = _held.get()
        if updates is None:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        else:
            variables = keras_version.variables_in(self) if trainable_variables is None else trainable_variables
            updates.append(Update(self, list(grads), list(variables)))
