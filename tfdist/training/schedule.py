"""The factor of a learning rate: of a schedule, read at run time; and files that have the rate without the factor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.trackable.base import Trackable

from tfdist.native import keras_version


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


def learning_rate_scale(optimizer: keras.optimizers.Optimizer) -> float:
    """The factor set by `scale_learning_rate`; 1.0 by default."""
    return float(getattr(keras_version.inner_optimizer(optimizer), "_tfdist_rate_factor", 1.0))


def note_learning_rate_scale(optimizer: keras.optimizers.Optimizer, factor: float) -> None:
    """Says what the rate of one process was multiplied by, without a change of the rate."""
    keras_version.inner_optimizer(optimizer)._tfdist_rate_factor = float(factor)


def scale_in_checkpoints(rate: keras.Variable, factor: Callable[[], float]) -> None:
    """Makes `tf.train.Checkpoint` write a rate divided by a factor, and restore it multiplied by it.

    The variables of a strategy with several replicas are left alone: they are written in another way.
    """
    variable = rate.value
    has_own_way = type(variable)._serialize_to_tensors is Trackable._serialize_to_tensors
    if has_own_way or "_restore_from_tensors" in vars(variable):  # it was here before
        return
    written, restored = variable._serialize_to_tensors, variable._restore_from_tensors

    def write() -> dict[str, Any]:
        return {name: variable.read_value() / factor() for name in written()}

    def restore(tensors: Mapping[str, Any]) -> Any:
        return restored({name: tensor * factor() for name, tensor in tensors.items()})

    variable._serialize_to_tensors, variable._restore_from_tensors = write, restore


def rates_in_files(optimizer: Any) -> dict[int, Any]:
    """What files hold in place of the multiplied rate, by its place among the optimizer's variables."""
    source, factor = keras_version.learning_rate_of(optimizer), learning_rate_scale(optimizer)
    places = [place for place, variable in enumerate(optimizer.variables) if variable is source and factor != 1.0]
    return {place: (rate := optimizer.variables[place].numpy()) / rate.dtype.type(factor) for place in places}


class UnscaledRate:
    """Mixed into a distributed optimizer: files store the rate of one process.

    Training continues from such a file at the right rate in one process, and a later job scales it for its own size. A
    `LossScaleOptimizer` saves the variables of its inner optimizer too.
    """

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        source = keras_version.learning_rate_of(self)
        if "learning_rate" not in config:  # a LossScaleOptimizer: its inner optimizer writes it
            return config
        if isinstance(source, ScaledSchedule):
            config["learning_rate"] = keras.optimizers.schedules.serialize(source.schedule)
        elif isinstance(config["learning_rate"], float):
            config["learning_rate"] /= learning_rate_scale(self)
        return config

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        for index, rate in rates_in_files(self).items():
            del store[str(index)]
            store[str(index)] = rate

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)  # type: ignore[misc]
        source, factor = keras_version.learning_rate_of(self), learning_rate_scale(self)
        if isinstance(source, keras.Variable) and factor != 1.0:
            source.assign(source * factor)
