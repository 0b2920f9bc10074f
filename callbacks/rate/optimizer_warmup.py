"""The warm-up of one optimizer of a model, whose rate may be a schedule. Used by `DataParallel`."""

from __future__ import annotations

from typing import Any

import keras

from tfdist.callbacks.rate.learning_rate_warmup import LearningRateWarmupCallback
from tfdist.callbacks.rate.rate_setter import RateSetter, velocities
from tfdist.native import keras_version
from tfdist.training import optimizer, schedule


class OptimizerWarmup(LearningRateWarmupCallback):
    """Raises the factor of an optimizer's rate to that of all ranks. Files have the rate without it.

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
        super().__init__(factor, warmup_epochs, steps_per_epoch=steps_per_epoch)
        self._target = target
        self._base_rate = base_rate

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_epoch(epoch)

    def _advance(self, step: int, warmup_steps: int) -> None:
        # A training that resumes from a file, or with other ranks, has the factor of the end, as `DataParallel` set it.
        if self._ended is None and step and schedule.learning_rate_scale(self._target) == self._initial_lr:
            if step >= warmup_steps:
                self._ended = True
                return
            before = max(0, step - self._latest_execution(step))
            self._set(self._rate_at(before, warmup_steps), momentum_correction=False)
        super()._advance(step, warmup_steps)

    def _latest_execution(self, step: int) -> int:
        """The steps of the execution before a step; the last one of an epoch may have fewer."""
        steps: int = self.model.steps_per_execution
        return steps if step % self._steps else (self._steps - 1) % steps + 1

    def _apply(self, rate: float) -> None:
        self._set(rate, momentum_correction=True)

    def _set(self, factor: float, momentum_correction: bool) -> None:
        if self._base_rate is not None:
            RateSetter(momentum_correction).set(self._target, self._base_rate * factor)
            schedule.note_learning_rate_scale(self._target, factor)
            return
        old = schedule.learning_rate_scale(self._target)
        if factor == old:
            return
        optimizer.scale_learning_rate(self._target, factor)
        if momentum_correction:
            for velocity in velocities(keras_version.inner_optimizer(self._target)):
                velocity.assign(velocity * (factor / old))
