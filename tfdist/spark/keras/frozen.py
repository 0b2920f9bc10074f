"""Models, optimizers, losses and metrics of Keras as what can be sent to other processes and kept in files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

_FILE = "model.keras"


class _Object(NamedTuple):
    """An optimizer or a metric: its configuration, its class, and the values of an optimizer's variables."""

    configuration: Any
    kind: type
    state: tuple[Any, ...] = ()


class _Loss(NamedTuple):
    """A loss: its class and its attributes."""

    kind: type
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """A model, and how it is compiled.

    Attributes:
        model: A `.keras` file.
        custom_objects: Classes and functions that it needs, by name.
        compiled: Arguments of `compile`, frozen; without an optimizer if the file has the one to go on with; empty if
            the model is not compiled.
        others: More of them, as the model has been compiled, as Keras writes them.
    """

    model: bytes
    custom_objects: Mapping[str, Any]
    compiled: Mapping[str, Any]
    others: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any, custom_objects: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Recipe:
        """That of a model as it is, but for the arguments of `compile` that are given."""
        known = {"optimizer": model.optimizer, "loss": model.loss} if model.compiled else {}
        compiled = {**known, **(given or {})}
        others = (model.get_compile_config() or {}) if model.compiled else {}
        others = {name: value for name, value in others.items() if name not in compiled}
        return cls(dump(model), {**objects_in(compiled), **custom_objects}, freeze(compiled), others)

    def going_on_from(self, model: bytes) -> Recipe:
        """The same for another file, with the optimizer that it has."""
        compiled = {name: value for name, value in self.compiled.items() if name != "optimizer"}
        return replace(self, model=model, compiled=compiled)

    def build(self) -> Any:
        """The model, compiled if there are arguments for it."""
        import keras

        if not self.compiled:
            return load(self.model, self.custom_objects, compiled=False)
        optimizer = self.compiled.get("optimizer")
        model = load(self.model, self.custom_objects, compiled=optimizer is None)
        arguments = keras.saving.deserialize_keras_object(dict(self.others), dict(self.custom_objects))
        arguments |= {name: thaw(value, self.custom_objects) for name, value in self.compiled.items()}
        model.compile(**(arguments | ({"optimizer": model.optimizer} if optimizer is None else {})))
        if isinstance(optimizer, _Object) and optimizer.state:
            model.optimizer.build(model.trainable_variables)
            for variable, value in zip(model.optimizer.variables, optimizer.state, strict=True):
                variable.assign(value)
        return model


def dump(model: Any) -> bytes:
    """A model as a `.keras` file."""
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        path = Path(folder) / _FILE
        model.save(path)
        return path.read_bytes()


def load(data: bytes, custom_objects: Mapping[str, Any], compiled: bool = True) -> Any:
    """The model of a `.keras` file that this user's own programs have written: code in it is run."""
    import keras

    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        path = Path(folder) / _FILE
        path.write_bytes(data)
        return keras.saving.load_model(path, dict(custom_objects), compile=compiled, safe_mode=False)


def freeze(value: Any) -> Any:
    """Optimizers, losses and metrics, also in a structure, as what can be pickled.

    Functions and names are as given. The configuration of a loss, which Keras pickles too, lacks some of its arguments,
    such as the `delta` of `Huber`; so its attributes are taken.
    """
    import keras

    if isinstance(value, (list, tuple)):
        return [freeze(each) for each in value]
    if isinstance(value, dict):
        return {name: freeze(each) for name, each in value.items()}
    if isinstance(value, keras.optimizers.Optimizer):
        state = tuple(variable.numpy() for variable in value.variables) if value.built else ()
        return _Object(keras.saving.serialize_keras_object(value), type(value), state)
    if isinstance(value, keras.losses.Loss):
        return _Loss(type(value), dict(vars(value)))
    if isinstance(value, keras.metrics.Metric):
        return _Object(keras.saving.serialize_keras_object(value), type(value))
    return value


def objects_in(value: Any) -> dict[str, Any]:
    """The functions and classes of the user's own in optimizers, losses and metrics, by the names that Keras writes."""
    if isinstance(value, (dict, list, tuple)):
        found: dict[str, Any] = {}
        for each in value.values() if isinstance(value, dict) else value:
            found |= objects_in(each)
        return found
    named = value if hasattr(value, "__name__") else type(value)
    return {} if named.__module__.partition(".")[0] in ("builtins", "keras") else {named.__name__: named}


def thaw(value: Any, custom_objects: Mapping[str, Any]) -> Any:
    """The reverse of `freeze`, in another process."""
    import keras

    if isinstance(value, _Object):
        return keras.saving.deserialize_keras_object(
            value.configuration, custom_objects={value.kind.__name__: value.kind, **custom_objects}
        )
    if isinstance(value, _Loss):
        made: Any = object.__new__(value.kind)
        vars(made).update(value.attributes)
        return made
    if isinstance(value, list):
        return [thaw(each, custom_objects) for each in value]
    if isinstance(value, dict):
        return {name: thaw(each, custom_objects) for name, each in value.items()}
    return value
