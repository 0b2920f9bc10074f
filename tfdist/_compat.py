"""Everything that depends on private names of Keras, so that a new release is met in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src import api_export
from keras.src.saving import object_registration
from keras.src.utils import io_utils, python_utils


def publish_as(subclass: type, base: type) -> None:
    """Makes Keras write objects of `subclass` to a file as objects of `base`.

    A model saved during distributed training must load where tfdist is not installed. Keras looks up the public or
    registered name of a class in these two tables, and finds the weights of a layer in a file by its class's name.
    """
    subclass.__name__ = base.__name__
    name = api_export.get_name_from_symbol(base)
    if name is not None:
        api_export.REGISTERED_OBJS_TO_NAMES[subclass] = name
    registered = object_registration.GLOBAL_CUSTOM_NAMES.get(base)
    if registered is not None:
        object_registration.GLOBAL_CUSTOM_NAMES[subclass] = registered


def learning_rate_of(optimizer: Any) -> Any:
    """What holds the rate: a `keras.Variable`, a `LearningRateSchedule` or a callable."""
    return inner_optimizer(optimizer)._learning_rate


def set_learning_rate_source(optimizer: Any, source: Any) -> None:
    """Replaces a schedule by another without touching the optimizer's variables."""
    inner_optimizer(optimizer)._learning_rate = source


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer that holds rate and slots: the one inside a `LossScaleOptimizer`, else itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def accumulators(optimizer: Any) -> list[Any]:
    """The sums of gradients since the last update; of a rank's own gradients, so they differ by rank."""
    slots = getattr(inner_optimizer(optimizer), "_accumulated_gradients", [])
    return [slot for slot in slots if slot is not None]


def slots(optimizer: Any) -> list[tuple[Any, Any]]:
    """Pairs of a trainable variable and an optimizer variable that belongs to it, such as its momentum.

    Keras keeps slots in lists in the order of the trainable variables, with None where a variable has none.
    """
    inner = inner_optimizer(optimizer)
    own = {id(variable) for variable in inner.variables}
    lists = [
        value
        for value in vars(inner).values()
        if isinstance(value, (list, tuple))
        and value is not inner._variables
        and len(value) == len(inner._trainable_variables)
    ]
    return [
        (variable, slot)
        for candidates in lists
        for variable, slot in zip(inner._trainable_variables, candidates, strict=True)
        if id(slot) in own
    ]


def metrics_reader(model: Any) -> Any:
    """The method through which `fit` and `evaluate` read metrics at the end of an epoch."""
    return model._get_metrics_result_or_logs


def set_metrics_reader(model: Any, reader: Any) -> None:
    """Replaces that method on this instance."""
    model._get_metrics_result_or_logs = reader


def set_initial_epoch(model: Any, epoch: int) -> None:
    """The epoch a `fit` that is about to begin starts from."""
    model._initial_epoch = epoch


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The dimensions that a built layer takes its moments over: all but its axis."""
    axes: list[int] = layer._reduction_axes
    return axes


def moments_of_process(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Mean and variance of a batch as Keras takes them where `synchronized` is False."""
    if mask is None:
        mean, variance = keras.ops.moments(inputs, axes=reduction_axes(layer))
    else:
        mean, variance = keras.layers.BatchNormalization._moments(layer, inputs, mask)
    return mean, variance


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a model, and of models in it."""
    yield from model._flatten_layers()


def layers_with_keras_moments(model: keras.Model) -> Iterator[keras.layers.BatchNormalization]:
    """The batch normalisations of a model, and of models in it, whose moments nobody has replaced.

    Keras takes the moments of a training batch by the method `_moments(inputs, mask)`, and by it only.
    `SyncBatchNormalization` overrides it.
    """
    kind = keras.layers.BatchNormalization
    for layer in layers_of(model):
        if isinstance(layer, kind) and getattr(layer._moments, "__func__", None) is kind._moments:
            yield layer


def set_moments(layer: keras.layers.BatchNormalization, moments: Callable[[Any, Any], Any]) -> None:
    """Replaces that method on this instance, unseen by what Keras tracks."""
    vars(layer)["_moments"] = moments


def reset_moments(layer: keras.layers.BatchNormalization) -> None:
    """Undoes `set_moments`."""
    del vars(layer)["_moments"]


def print_message(message: str) -> None:
    """Prints as Keras does, and so is silent where Keras is."""
    io_utils.print_msg(message)


def has_call(model: keras.Model) -> bool:
    """Whether a model can be called: one with a `train_step` of its own need not be."""
    return getattr(model.call, "__func__", None) is not keras.Model.call


def has_own_train_step(model: keras.Model) -> bool:
    """Whether the model's class has another training step than Keras'."""
    return type(model).train_step is not keras.Model.train_step


def has_own_build(layer: keras.layers.Layer) -> bool:
    """Whether building the layer may make weights of its own, and not just those of layers in it."""
    return not python_utils.is_default(layer.build) and type(layer).build is not keras.Sequential.build
