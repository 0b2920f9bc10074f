"""Models, optimizers, losses and metrics of Keras as what can be sent to other processes and kept in files."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

from tfdist.errors import ConfigError

_FILE = "model.keras"


class _Object(NamedTuple):
    """An optimizer or a metric: its configuration, its class, the values of an optimizer's variables, and attributes
    that its configuration may lack.
    """

    configuration: Any
    kind: type
    state: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = MappingProxyType({})

    def made(self, custom_objects: Mapping[str, Any]) -> Any:
        """Another object like it. Keras takes the configuration apart, so it gets a copy."""
        import keras

        known = {self.kind.__name__: self.kind, **custom_objects}
        made = keras.saving.deserialize_keras_object(copy.deepcopy(self.configuration), custom_objects=known)
        for name, value in self.attributes.items():
            setattr(made, name, value)
        return made


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
        undecayed: The weights that the optimizer excludes from its decay, which no file has.
    """

    model: bytes
    custom_objects: Mapping[str, Any]
    compiled: Mapping[str, Any]
    others: Mapping[str, Any]
    undecayed: Any = None

    @classmethod
    def of(cls, model: Any, custom_objects: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Recipe:
        """That of a model as it is, but for the arguments of `compile` that are given."""
        known = {"optimizer": model.optimizer, "loss": model.loss} if model.compiled else {}
        compiled = {**known, **(given or {})}
        others = (model.get_compile_config() or {}) if model.compiled else {}
        others = {name: value for name, value in others.items() if name not in compiled}
        objects = {**objects_in(compiled), **custom_objects}
        return cls(dump(model), objects, freeze(compiled), others, _undecayed(compiled.get("optimizer")))

    def with_model(self, model: bytes) -> Recipe:
        """The same for another file of the model as it is here."""
        return replace(self, model=model)

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
        if self.undecayed is not None:
            _inner(model.optimizer)._exclude_from_weight_decay_pattern = self.undecayed
        return model


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _undecayed(optimizer: Any) -> Any:
    """The pattern of `exclude_from_weight_decay(var_names=...)`; None if there is none.

    Raises:
        ConfigError: If variables were excluded: they are others in another process.
    """
    if getattr(_inner(optimizer), "_exclude_from_weight_decay", None):
        raise ConfigError(
            "the optimizer excludes variables from weight decay by exclude_from_weight_decay(var_list=...), which are "
            "not there in other processes. Name them: exclude_from_weight_decay(var_names=[...])."
        )
    return getattr(_inner(optimizer), "_exclude_from_weight_decay_pattern", None)


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
        return _Object(keras.saving.serialize_keras_object(value), type(value), state, _own_attributes(value))
    if isinstance(value, keras.losses.Loss):
        return _Loss(type(value), dict(vars(value)))
    if isinstance(value, keras.metrics.Metric):
        return _Object(keras.saving.serialize_keras_object(value), type(value), (), _own_attributes(value))
    return value


def _own_attributes(value: Any) -> dict[str, Any]:
    """Numbers and texts of an object of the user's own, which its configuration may lack."""
    if _is_known(type(value)):
        return {}
    plain = {name: each for name, each in vars(value).items() if isinstance(each, (bool, int, float, str, NoneType))}
    return {name: each for name, each in plain.items() if not name.startswith("_") and name not in ("built", "name")}


def _is_known(named: Any) -> bool:
    """Whether every process has the class or function."""
    return named.__module__.partition(".")[0] in ("builtins", "keras")


def objects_in(value: Any) -> dict[str, Any]:
    """The functions and classes of the user's own in optimizers, losses and metrics, by the names that Keras writes."""
    import keras

    if isinstance(value, (dict, list, tuple)):
        found: dict[str, Any] = {}
        for each in value.values() if isinstance(value, dict) else value:
            found |= objects_in(each)
        return found
    if hasattr(value, "__name__"):
        return {} if _is_known(value) else {value.__name__: value}
    found = {} if _is_known(type(value)) else {type(value).__name__: type(value)}
    kinds = (keras.optimizers.Optimizer, keras.optimizers.schedules.LearningRateSchedule, keras.losses.Loss)
    for each in getattr(value, "__dict__", {}).values():
        if isinstance(each, (*kinds, keras.metrics.Metric)) or inspect.isfunction(each):
            found |= objects_in(each)
    return found


def thaw(value: Any, custom_objects: Mapping[str, Any]) -> Any:
    """The reverse of `freeze`, in another process."""
    if isinstance(value, _Object):
        return value.made(custom_objects)
    if isinstance(value, _Loss):
        made: Any = object.__new__(value.kind)
        vars(made).update(value.attributes)
        return made
    if isinstance(value, list):
        return [thaw(each, custom_objects) for each in value]
    if isinstance(value, dict):
        return {name: thaw(each, custom_objects) for name, each in value.items()}
    return value
