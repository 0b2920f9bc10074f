"""Sets the learning rate of an optimizer, with or without momentum correction. Not a callback."""

from __future__ import annotations

from typing import Any

import keras

from tfdist import errors
from tfdist.native import keras_version

# Optimizers whose velocity holds the rate of the step it came from: v = m*v - lr*g.
_WITH_RATE_IN_VELOCITY = (keras.optimizers.SGD, keras.optimizers.RMSprop)


class RateSetter:
    """Sets the rate; with momentum correction also multiplies the velocity by new / old rate.

    Args:
        momentum_correction: Whether to correct the velocity at each change.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", remark 2.
    """

    def __init__(self, momentum_correction: bool) -> None:
        self._momentum_correction = momentum_correction

    def set(self, optimizer: keras.optimizers.Optimizer, rate: float) -> None:
        """Sets the rate.

        Args:
            optimizer: An optimizer whose rate is a number.
            rate: The new rate.

        Raises:
            ConfigError: If the rate of the optimizer is a schedule or a function.
        """
        inner = keras_version.inner_optimizer(optimizer)
        if not isinstance(keras_version.learning_rate_of(inner), keras.Variable):
            raise errors.ConfigError(
                "the optimizer's learning rate is a schedule or a function, and a callback cannot set it. Give the "
                "optimizer a number, or put the warm-up into the schedule."
            )
        old = float(inner.learning_rate.numpy())
        if rate == old:
            return
        inner.learning_rate = rate
        if self._momentum_correction and old > 0:
            for velocity in velocities(inner):
                velocity.assign(velocity * (float(inner.learning_rate.numpy()) / old))


def velocities(optimizer: Any) -> list[Any]:
    """The slots that accumulate rate times gradient; empty without momentum."""
    if not isinstance(optimizer, _WITH_RATE_IN_VELOCITY) or not optimizer.momentum or not optimizer.built:
        return []
    slots = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", [])
    return [slot for slot in slots if slot is not None]
