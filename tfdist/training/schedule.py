"""A learning-rate schedule times a factor that is read at run time."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of another schedule times a factor.

    You need it if the number of ranks, or a warm-up, scales the rate. The factor is a variable, so it can change
    without retracing the training step. It is not part of any saved model: `tfdist` optimizers save the inner schedule.

    Args:
        schedule: The schedule of one process.
        factor: Initial value of the factor, float32.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float) -> None:
        self.schedule = schedule
        self.factor = tf.Variable(factor, trainable=False, dtype=tf.float32, name="learning_rate_factor")

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        return {"schedule": keras.optimizers.schedules.serialize(self.schedule), "factor": float(self.factor.numpy())}
