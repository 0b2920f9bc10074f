"""Multiplies a base learning rate by a factor that depends on the epoch."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import keras

import tfdist
from tfdist import errors
from tfdist.callbacks.fit.compiled_optimizer import RATES_REMEDY, CompiledOptimizer
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.callbacks.rate.learning_rate_warmup import steps_of_epoch
from tfdist.callbacks.rate.rate_setter import RateSetter

_logger = logging.getLogger("tfdist")
# Who has imported it may have a script that was tuned with Horovod.
_HOROVODS_NAME = "tfdist.keras.callbacks"


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times a multiplier between two epochs.

    You need it for the stepwise decays of published training recipes; combine several into a schedule.

    Args:
        initial_lr: The base rate.
        multiplier: Number, or function of the epoch that returns one. With `staircase=False` the function gets
            fractional epochs, epoch + batch / steps.
        start_epoch: First epoch of the interval.
        end_epoch: First epoch after it; None: no end.
        staircase: Whether the rate changes once per epoch (True) or with every batch.
        momentum_correction: As in `LearningRateWarmupCallback`.
        steps_per_epoch: Steps per epoch, for `staircase=False`; default: as `fit` reports.

    Raises:
        ConfigError: If an argument is invalid; at the end of an epoch, if the model is also trained by optimizers other
            than the compiled one.

    Example:

    ```python
    tfdist.callbacks.LearningRateScheduleCallback(0.1, multiplier=1e-1, start_epoch=30, end_epoch=60)
    ```
    """

    def __init__(  # the signature is Horovod's
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if end_epoch is not None and end_epoch <= start_epoch:
            raise errors.ConfigError(f"end_epoch must be after start_epoch={start_epoch}; received {end_epoch}.")
        self._initial_lr = initial_lr
        self._multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self._number = None if callable(multiplier) else multiplier
        self._is_told = False
        self._start_epoch = start_epoch
        self._end_epoch = end_epoch
        # A constant has nothing between two epochs.
        self._staircase = staircase or not callable(multiplier)
        self._steps_per_epoch = steps_per_epoch
        self._setter = RateSetter(momentum_correction)
        self._compiled = CompiledOptimizer("LearningRateScheduleCallback sets the rate", RATES_REMEDY)
        self._epoch = 0

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._tell_of_horovod()
        self._compiled.begin(self.model)
        self._steps = 1 if self._staircase else steps_of_epoch(self._steps_per_epoch, self)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        if self._staircase and self._applies():
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._staircase and self._applies() and not self._hook.skips(batch):
            self._set(self._epoch + batch / self._steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._compiled.check(self.model)

    def _tell_of_horovod(self) -> None:
        """Where a script uses Horovod's names: its newest versions do not do what they document."""
        number = self._number
        if self._is_told or number in (None, 1) or _HOROVODS_NAME not in sys.modules or tfdist.rank():
            return
        self._is_told = True
        power = f"{number!r} ** (epoch - {self._start_epoch})" if self._start_epoch else f"{number!r} ** epoch"
        _logger.warning(
            "LearningRateScheduleCallback(multiplier=%r): the rate is %r * initial_lr in all epochs from %d on, as "
            "Horovod documents it. Horovod 0.23 and later take %s there: for that, give multiplier=lambda epoch: %s. "
            "multiplier=lambda epoch: %r keeps the rate without this line.",
            *(number, number, self._start_epoch, power, power, number),
        )

    def _applies(self) -> bool:
        return self._start_epoch <= self._epoch and (self._end_epoch is None or self._epoch < self._end_epoch)

    def _set(self, epoch: float) -> None:
        self._setter.set(self.model.optimizer, self._initial_lr * self._multiplier(epoch))
