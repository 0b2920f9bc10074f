"""Raises the learning rate from that of one process to that of all ranks."""

from __future__ import annotations

from typing import Any

import keras

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import training_data
from tfdist.callbacks.fit.compiled_optimizer import RATES_REMEDY, CompiledOptimizer
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.callbacks.rate.rate_setter import RateSetter
from tfdist.native.keras_version import print_message


def warmup_rate(initial_lr: float, size: int, step: int, warmup_steps: int) -> float:
    """The rate of one step, rising linearly from `initial_lr / size` to `initial_lr`.

    Args:
        initial_lr: The rate after the warm-up, already scaled.
        size: Number of ranks.
        step: Steps taken so far, 0 for the first.
        warmup_steps: Steps of the warm-up.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2, gradual warmup.
    """
    if step >= warmup_steps:
        return initial_lr
    return initial_lr / size * (1 + (size - 1) * step / warmup_steps)


def warmup_rate_from_zero(initial_lr: float, step: int, warmup_steps: int) -> float:
    """The rate of one step, rising linearly from `initial_lr / (warmup_steps + 1)` to `initial_lr`, on any number of
    ranks.

    Args:
        initial_lr: The rate after the warm-up.
        step: Steps taken so far, 0 for the first.
        warmup_steps: Steps of the warm-up.
    """
    return initial_lr * min(1.0, (step + 1) / (warmup_steps + 1))


class LearningRateWarmupCallback(keras.callbacks.Callback):
    """Raises the learning rate linearly over the first epochs.

    You need it if many ranks make the first steps too large for weights that are still random. With size n and a
    warm-up of W epochs of S steps, step t = 0, 1, ..., W*S - 1 has the rate `initial_lr / n * (1 + (n - 1) * t /
    (W*S))`, and later steps have `initial_lr`: it starts at `initial_lr / n` and has no jump. With
    `steps_per_execution=k` the rate changes every k steps.

    On data from `tfdist.shard(..., global_batch=N)` the warm-up is the same for any number of ranks: step t has the
    rate `initial_lr * (t + 1) / (W*S + 1)`. Pass the rate of one process there, not multiplied by `tfdist.size()`.

    Args:
        initial_lr: The rate after the warm-up, already multiplied by the number of ranks.
        warmup_epochs: Epochs of the warm-up; may be fractional.
        momentum_correction: Whether the velocity of SGD and RMSprop with momentum is multiplied by new rate / old rate
            at each change. Keras updates v = m*v - lr*g, so without it the past gradients keep the old rate.
        steps_per_epoch: Steps per epoch; default: as `fit` reports.
        verbose: 1 prints a line at the end of the warm-up, on rank 0.

    Raises:
        ConfigError: If an argument is invalid or the steps per epoch are unknown; at the end of an epoch, if the model
            is also trained by optimizers other than the compiled one.

    Example:

    ```python
    tfdist.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * tfdist.size(), warmup_epochs=5)
    ```

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2 and remark 2 (momentum correction).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        if warmup_epochs < 0:
            raise errors.ConfigError(f"warmup_epochs must be 0 or more; received {warmup_epochs}.")
        self._initial_lr = initial_lr
        self._warmup_epochs = warmup_epochs
        self._steps_per_epoch = steps_per_epoch
        self._verbose = verbose
        self._setter = RateSetter(momentum_correction)
        self._compiled = CompiledOptimizer("LearningRateWarmupCallback sets the rate", RATES_REMEDY)
        self._epoch = 0

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._ended: bool | None = None
        self._compiled.begin(self.model)
        self._steps = steps_of_epoch(self._steps_per_epoch, self)
        self._from_zero = training_data.global_batch(self.model) is not None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._ended or self._hook.skips(batch):
            return
        step, warmup_steps = self._position(batch)
        # Training that resumes after the warm-up has its rate from what it resumes.
        if self._ended is None and step > warmup_steps:
            self._ended = True
        else:
            self._advance(step, warmup_steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._compiled.check(self.model)
        self._end_epoch(epoch)

    def _end_epoch(self, epoch: int) -> None:
        # So that callbacks which change the rate between epochs have the last word.
        step, warmup_steps = self._position(0, epoch + 1)
        if not self._ended and step >= warmup_steps:
            self._advance(step, warmup_steps)

    def _position(self, batch: int, epoch: int | None = None) -> tuple[int, int]:
        """Steps taken so far, and steps of the warm-up."""
        taken = (self._epoch if epoch is None else epoch) * self._steps + batch
        return taken, round(self._warmup_epochs * self._steps)

    def _rate_at(self, step: int, warmup_steps: int) -> float:
        if self._from_zero:
            return warmup_rate_from_zero(self._initial_lr, step, warmup_steps)
        return warmup_rate(self._initial_lr, tfdist.size(), step, warmup_steps)

    def _advance(self, step: int, warmup_steps: int) -> None:
        self._apply(self._rate_at(step, warmup_steps))
        self._ended = step >= warmup_steps
        if self._ended and self._verbose and tfdist.rank() == 0:
            # A progress bar may stand on the line.
            print_message(f"\nWarm-up ended: the learning rate is {self._initial_lr:g}.")

    def _apply(self, rate: float) -> None:
        self._setter.set(self.model.optimizer, rate)


def steps_of_epoch(given: int | None, callback: keras.callbacks.Callback) -> int:
    """Steps per epoch, as given or as `fit` reports; the largest of all ranks. A collective: every rank calls it.

    Raises:
        ConfigError: If neither is known.
    """
    steps = given or (callback.params or {}).get("steps")
    if not steps:
        raise errors.ConfigError(
            "the number of steps per epoch is unknown because the dataset has no known length. Pass steps_per_epoch."
        )
    if not training_data.is_uneven(callback.model):
        return int(steps)
    return int(tfdist.allreduce(int(steps), op=tfdist.Max, name="steps of an epoch"))
