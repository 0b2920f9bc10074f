"""Lets a script that was written for Keras 2 run with Keras 3, where the meaning of a line is clear.

Each translation warns once, on rank 0, with the line to write instead; what has no safe translation is an error that
says what to write. The list is in docs/migrating-from-horovod.md.
"""

from __future__ import annotations

import functools
import inspect
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system.after_import import after_import
from tfdist.system.rank import job_place

_logger = logging.getLogger("tfdist")
_said: set[str] = set()
_SPEED = "the call without it; a keras.utils.PyDataset takes it"
# Of a method of keras.Model: arguments that Keras 3 does not have and that change no result, with what to write.
_DROPPED = {
    "compile": {"experimental_run_tf_function": "the call without it"},
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
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):  # those that have one of their own
        kind.variables = _also_a_method(kind.variables)
    for method, steps_name in (("fit", "steps_per_epoch"), ("evaluate", "steps"), ("predict", "steps")):
        setattr(keras.Model, method, _with_repeated_data(getattr(keras.Model, method), steps_name))
    for method, dropped in _DROPPED.items():
        setattr(keras.Model, method, _without(getattr(keras.Model, method), dropped))
    for old, new in _GENERATORS.items():
        setattr(keras.Model, old, _of_generator(old, new))
    keras.preprocessing.image.ImageDataGenerator = keras._tf_keras.keras.preprocessing.image.ImageDataGenerator
    for backend in (keras.backend, keras._tf_keras.keras.backend):
        backend.set_session = _set_session
        backend.get_session = _no_session
        backend.get_value, backend.set_value = _get_value, _set_value


def _warn(what: str, instead: str) -> None:
    """Says what to write for something of Keras 2."""
    _say(what, f"Keras 3 has no {what}, so tfdist translates it. Write {instead}.")


def _say(what: str, text: str) -> None:
    """Once for each `what`, on rank 0 of a job, also before `init`, or in a process alone."""
    if what not in _said and job_place.rank() in ("?", "0"):
        _logger.warning("%s", text)
    _said.add(what)


class _Variables(list[Any]):
    """The variables of an optimizer; Keras 2 had a method where Keras 3 has a property."""

    def __call__(self) -> list[Any]:
        _warn("optimizer.variables()", "optimizer.variables")
        return list(self)


def _translate_optimizers(optimizer: Any) -> None:
    make = optimizer.__init__

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
        return [variable.numpy() for variable in self.variables]

    optimizer.__init__ = make_with_old_names
    optimizer.lr = property(rate, set_rate)
    optimizer.get_weights = weights


def _also_a_method(variables: Any) -> property:
    """The property `variables` of an optimizer, whose value can be called."""
    return property(lambda self: _Variables(variables.fget(self)))


def _without(method: Callable[..., Any], dropped: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, instead in dropped.items():
            if name in kwargs:
                del kwargs[name]
                _warn(f"argument {name} in model.{method.__name__}", instead)
        return method(*args, **kwargs)

    return call


def _with_repeated_data(method: Callable[..., Any], steps_name: str) -> Callable[..., Any]:
    """A dataset of a known length begins again where it ends before the steps that were asked for.

    Keras 3 ends the epoch, the evaluation or the prediction there, so it would use less than Keras 2 did.
    """

    @functools.wraps(method)
    def call(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        name, steps = method.__name__, kwargs.get(steps_name)
        if name == "fit" and "validation_data" in kwargs:
            given = kwargs["validation_data"], "validation_steps", kwargs.get("validation_steps")
            kwargs["validation_data"] = _long_enough(*given)
        if name == "fit" and steps is not None and _are_arrays(x):
            return _fit_arrays(method, self, x, *args, **kwargs)
        length = _length(x)
        if name == "fit" and length is not None and steps not in (None, length):
            _tell_of_repetition(steps_name, steps, length)
            # An epoch continues where the last one has ended.
            x = _forever(x, shuffles=bool(kwargs.pop("shuffle", True)))
        elif name != "fit":
            x = _long_enough(x, steps_name, steps)
        return method(self, x, *args, **kwargs)

    return call


def _are_arrays(data: Any) -> bool:
    import numpy as np
    import tensorflow as tf

    parts = tf.nest.flatten(data)
    return bool(parts) and all(isinstance(part, (np.ndarray, tf.Tensor, tf.Variable)) for part in parts)


def _fit_arrays(fit: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fit` on arrays with a number of steps in an epoch: an epoch continues where the last one has ended.

    Keras 3 begins them again only in the epoch after the one in which they end, so that one has fewer steps.
    """
    from tfdist.native import keras_version

    call = inspect.signature(fit).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    arrays, steps = tuple(given[name] for name in ("x", "y", "sample_weight")), given["steps_per_epoch"]
    if given["validation_split"] and given["validation_data"] is None:
        arrays, given["validation_data"] = keras_version.split_arrays(arrays, given["validation_split"])
        given["validation_split"] = 0.0
    data, length = keras_version.dataset_of_arrays(
        arrays, given["batch_size"], steps, given["shuffle"], given["class_weight"]
    )
    if length == steps:
        return fit(*args, **kwargs)
    numbers = f"steps_per_epoch={steps} and {length} batches"
    _say(
        numbers,
        f"Keras 3 ends an epoch where the arrays end, and Keras 2 began them again ({numbers}), so tfdist repeats "
        "them. Write tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(batch_size).repeat().",
    )
    given["validation_batch_size"] = given["validation_batch_size"] or given["batch_size"]
    given |= dict.fromkeys(("y", "sample_weight", "class_weight", "batch_size"))
    given |= {"x": data.repeat(), "shuffle": False}
    return fit(*call.args, **call.kwargs)


def _length(data: Any) -> int | None:
    """Of a dataset that knows it, in batches."""
    known = isinstance(data, sys.modules["keras"].utils.PyDataset) and data.num_batches is not None
    return len(data) if known else None


def _long_enough(data: Any, steps_name: str, steps: int | None) -> Any:
    length = _length(data)
    if length is None or steps is None or steps <= length:
        return data
    _tell_of_repetition(steps_name, steps, length)
    return _repeated(data, steps)


def _tell_of_repetition(steps_name: str, steps: Any, length: int) -> None:
    numbers = f"{steps_name}={steps} and {length} batches"
    _say(
        numbers,
        f"Keras 3 uses a dataset once where Keras 2 began it again ({numbers}), so tfdist repeats it. Write a "
        "generator that yields dataset[index] in a loop and calls dataset.on_epoch_end() after each pass.",
    )


def _forever(dataset: Any, shuffles: bool) -> Iterator[Any]:
    """Each pass in an order of its own, as Keras would have it: by the random numbers of this process."""
    while True:
        order = list(range(len(dataset)))
        if shuffles:
            random.shuffle(order)
        for index in order:
            yield dataset[index]
        dataset.on_epoch_end()


def _repeated(dataset: Any, steps: int) -> Any:
    class Repeated(sys.modules["keras"].utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return steps

        def __getitem__(self, index: int) -> Any:
            return dataset[index % len(dataset)]

        def on_epoch_end(self) -> None:
            dataset.on_epoch_end()

    return Repeated()


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


def _get_value(variable: Any) -> Any:
    _warn("backend.get_value", "variable.numpy()")
    return variable.numpy() if hasattr(variable, "numpy") else variable


def _set_value(variable: Any, value: Any) -> None:
    _warn("backend.set_value", "variable.assign(value)")
    variable.assign(value)


def _no_session() -> None:
    raise ConfigError(
        "keras.backend.get_session() was called, but Keras 3 has no sessions. Tensors have values: write "
        "value.numpy(), or use tf.compat.v1 with import horovod.tensorflow for a graph with sessions."
    )
