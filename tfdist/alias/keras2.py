"""Lets a script that was written for Keras 2 run with Keras 3, where the meaning of a line is clear.

Each translation warns once, on rank 0, with the line to write instead; what has no safe translation is an error that
says what to write. The list is in docs/migrating-from-horovod.md.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system.after_import import after_import
from tfdist.world import runtime

_logger = logging.getLogger("tfdist")
_said: set[str] = set()
_SPEED = "Keras 3 reads a PyDataset with its own workers: pass them to the PyDataset"
# Of a method of keras.Model: arguments that Keras 3 does not have and that change no result, with what to write.
_DROPPED = {
    "compile": {"experimental_run_tf_function": "omit it: Keras 3 has one way to run"},
    **{
        method: dict.fromkeys(("workers", "use_multiprocessing", "max_queue_size"), _SPEED)
        for method in ("fit", "evaluate", "predict")
    },
}
_GENERATORS = {"fit_generator": "fit", "evaluate_generator": "evaluate", "predict_generator": "predict"}
_GPU_OPTIONS = ("allow_growth", "visible_device_list")


def translate() -> None:
    """Translates from now on; at the import of Keras, if that is to come."""
    after_import("keras", _translate)


def _translate() -> None:
    keras = sys.modules["keras"]
    if "lr" in vars(keras.optimizers.Optimizer):
        return
    _translate_optimizers(keras.optimizers.Optimizer)
    keras.Model.fit = _with_repeated_data(keras.Model.fit)
    for method, dropped in _DROPPED.items():
        setattr(keras.Model, method, _without(getattr(keras.Model, method), dropped))
    for old, new in _GENERATORS.items():
        setattr(keras.Model, old, _of_generator(old, new))
    keras.preprocessing.image.ImageDataGenerator = keras._tf_keras.keras.preprocessing.image.ImageDataGenerator
    for backend in (keras.backend, keras._tf_keras.keras.backend):
        backend.set_session = _set_session
        backend.get_session = _no_session


def _warn(what: str, instead: str) -> None:
    """Once for each `what`, on rank 0 of a job, or in a process alone."""
    if what not in _said and (not runtime.is_initialized() or runtime.rank() == 0):
        _logger.warning("Keras 3 has no %s, so tfdist translates it. Write %s.", what, instead)
    _said.add(what)


class _Variables(list[Any]):
    """The variables of an optimizer; Keras 2 had a method where Keras 3 has a property."""

    def __call__(self) -> list[Any]:
        _warn("optimizer.variables()", "optimizer.variables")
        return list(self)


def _translate_optimizers(optimizer: Any) -> None:
    make, variables = optimizer.__init__, optimizer.variables

    @functools.wraps(make)
    def make_with_old_names(self: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        if "lr" in kwargs:
            _warn(f"argument lr in {name}", f"{name}(learning_rate={kwargs['lr']!r})")
            kwargs["learning_rate"] = kwargs.pop("lr")
        decay = kwargs.pop("decay", None)
        if decay:
            rate = kwargs.get("learning_rate", 0.01)
            raise ConfigError(
                f"{name}(decay={decay!r}): Keras 3 has no decay. Write {name}(learning_rate=keras.optimizers.schedules."
                f"InverseTimeDecay({rate!r}, decay_steps=1, decay_rate={decay!r})), or a learning-rate callback."
            )
        make(self, *args, **kwargs)

    def rate(self: Any) -> Any:
        _warn("optimizer.lr", "optimizer.learning_rate")
        return self.learning_rate

    def set_rate(self: Any, value: Any) -> None:
        _warn("optimizer.lr", "optimizer.learning_rate")
        self.learning_rate = value

    def weights(self: Any) -> list[Any]:
        _warn("optimizer.get_weights()", "[variable.numpy() for variable in optimizer.variables]")
        return [variable.numpy() for variable in variables.fget(self)]

    optimizer.__init__ = make_with_old_names
    optimizer.lr = property(rate, set_rate)
    optimizer.variables = property(lambda self: _Variables(variables.fget(self)))
    optimizer.get_weights = weights


def _without(method: Callable[..., Any], dropped: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, instead in dropped.items():
            if name in kwargs:
                del kwargs[name]
                _warn(f"argument {name} in model.{method.__name__}", f"the call without it ({instead})")
        return method(*args, **kwargs)

    return call


def _with_repeated_data(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Epochs of `steps_per_epoch` go on in the data where the last one has ended, and begin it again at its end.

    Keras 3 ends the epoch there, so a rank would train on less than Keras 2 did.
    """

    @functools.wraps(fit)
    def call(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        steps = kwargs.get("steps_per_epoch")
        if steps is not None and hasattr(x, "__getitem__") and hasattr(x, "on_epoch_end") and steps != len(x):
            _warn(
                f"model.fit with steps_per_epoch={steps} of a dataset of {len(x)} batches that begins again",
                "a generator that yields dataset[i] in a loop, and calls dataset.on_epoch_end() after each pass",
            )
            x = _forever(x)
        return fit(self, x, *args, **kwargs)

    return call


def _forever(dataset: Any) -> Iterator[Any]:
    while True:
        for index in range(len(dataset)):
            yield dataset[index]
        dataset.on_epoch_end()


def _of_generator(old: str, new: str) -> Callable[..., Any]:
    def call(self: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            kwargs["steps_per_epoch" if new == "fit" else "steps"], *rest = args
            if rest:
                raise ConfigError(
                    f"model.{old} received {len(args) + 1} arguments without a name; expected the generator and the "
                    f"number of steps. Write model.{new}(generator, ...), with the others by name."
                )
        _warn(f"model.{old}", f"model.{new}(generator, ...)")
        return getattr(self, new)(generator, **kwargs)

    call.__name__ = old
    return call


def _set_session(session: Any) -> None:
    """What a script of Horovod asks for here: that GPU memory grows, and the rank's own GPU."""
    import tensorflow as tf

    wanted = getattr(session, "_config", None) or tf.compat.v1.ConfigProto()
    others = [field.name for field, _ in wanted.ListFields() if field.name != "gpu_options"]
    others += [field.name for field, _ in wanted.gpu_options.ListFields() if field.name not in _GPU_OPTIONS]
    if others:
        raise ConfigError(
            f"keras.backend.set_session received a session with {', '.join(others)} in its ConfigProto, but Keras 3 "
            "has no sessions. Call tf.config instead, such as tf.config.threading.set_intra_op_parallelism_threads(4)."
        )
    _warn("backend.set_session", "nothing (hvd.init() pins the GPU), or tf.config.experimental.set_memory_growth")
    if wanted.gpu_options.allow_growth:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)


def _no_session() -> None:
    raise ConfigError(
        "keras.backend.get_session() was called, but Keras 3 has no sessions. Tensors have values: write "
        "value.numpy(), or use tf.compat.v1 with import horovod.tensorflow for a graph with sessions."
    )
