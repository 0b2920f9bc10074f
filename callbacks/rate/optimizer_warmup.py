"""The warm-up of one optimizer of a model, whose rate may be a schedule. Used by `DataParallel`."""

from __future__ import annotations

from typing import Any

import keras

from tfdist.callbacks.rate.learning_rate_warmup import LearningRateWarmupCallback
from tfdist.callbacks.rate.rate_setter import velocities
from tfdist.native import keras_version
from tfdist.training import optimizer


class OptimizerWarmup(LearningRateWarmupCallback):
    """Raises the rate of an optimizer, or the factor of its schedule, to that of all ranks.

    Args:
        target: A distributed optimizer.
        base_rate: The rate of one process; None if it is a schedule.
        factor: What the rate of one process is multiplied by.
        warmup_epochs: As in `LearningRateWarmupCallback`.
        steps_per_epoch: As in `LearningRateWarmupCallback`.
    """

    def __init__(
        self,
        target: keras.optimizers.Optimizer,
        base_rate: float | None,
        factor: int,
        warmup_epochs: float,
        steps_per_epoch: int | None,
    ) -> None:
        final = factor if base_rate is None else base_rate * factor
        super().__init__(final, warmup_epochs, steps_per_epoch=steps_per_epoch)
        self._target = target
        self._is_factor = base_rate is None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_epoch(epoch)

    def _apply(self, rate: float) -> None:
        if not self._is_factor:
            self._setter.set(self._target, rate)
            return
        old = optimizer.learning_rate_scale(self._target)
        if rate == old:
            return
        optimizer.scale_learning_rate(self._target, rate)
        for velocity in velocities(keras_version.inner_optimizer(self._target)):
            velocity.assign(velocity * (rate / old))
