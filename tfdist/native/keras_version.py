"""Everything that depends on private names of Keras, so that a new release is met in one place."""

from __future__ import annotations

import functools
import inspect
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras.src import api_export
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
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


def prepare_loss_scaling(prepare: Callable[[Any, Any, Any], Any]) -> None:
    """Has every `LossScaleOptimizer` apply what `prepare(optimizer, gradients, variables)` makes of its gradients.

    Keras' `compile` puts one around whatever optimizer it is given, and it does not show itself to the one inside
    before it has decided by the gradients whether to update.
    """
    kind = keras.optimizers.LossScaleOptimizer
    original = kind.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        original(self, prepare(self, grads, trainable_variables), trainable_variables)

    kind.apply = apply


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


def gradient_weights(layer: Any) -> list[Any]:
    """A layer's own weights that training changes by gradients only, those that are frozen among them."""
    return list(layer._trainable_variables)


def variables_in(optimizer: Any) -> list[Any]:
    """The variables that a built optimizer updates; none before it is built."""
    return list(getattr(inner_optimizer(optimizer), "_trainable_variables", []))


def metrics_reader(model: Any) -> Any:
    """The method through which `fit` and `evaluate` read metrics at the end of an epoch."""
    return model._get_metrics_result_or_logs


def set_metrics_reader(model: Any, reader: Any) -> None:
    """Replaces that method on this instance."""
    model._get_metrics_result_or_logs = reader


def set_initial_epoch(model: Any, epoch: int) -> None:
    """The epoch a `fit` that is about to begin starts from."""
    model._initial_epoch = epoch


def callbacks_of_fit(callback: keras.callbacks.Callback) -> list[Any]:
    """The list that a callback is called from, in its order; empty where somebody else calls it."""
    for frame, _ in traceback.walk_stack(None):
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList) and callback in caller.callbacks:
            return list(caller.callbacks)
    return []


def arguments_of_fit(model: Any) -> Mapping[str, Any]:
    """What the `fit` of Keras that is running was given, `initial_epoch` as restored; empty where none is."""
    for frame, _ in traceback.walk_stack(None):
        # That of the decorator around `fit`: a `validation_split` has replaced the data inside.
        names = frame.f_locals if frame.f_code.co_name == "error_handler" else {}
        if getattr(names.get("fn"), "__name__", "") == "fit" and names["args"][0] is model:
            given = inspect.signature(names["fn"]).bind(*names["args"], **names["kwargs"])
            given.apply_defaults()
            restored = getattr(model, "_initial_epoch", None)
            return {**given.arguments, "initial_epoch": restored or given.arguments["initial_epoch"]}
    return {}


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


def parts_of(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layers that a layer or model holds itself, also in lists and dicts."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def own_variables(layer: keras.layers.Layer) -> list[Any]:
    """The weights of a layer, without those of layers in it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def lookup_of(layer: keras.layers.Layer) -> Iterator[tuple[str, Any]]:
    """What a `StringLookup` or `IntegerLookup` looks up: its terms in their order, without those for masks and for
    what is unknown, and their weights where it has any.
    """
    keys, values = layer.lookup_table.export() if layer.lookup_table.size() else ((), ())
    terms, places = (values, keys) if layer.invert else (keys, values)
    found = np.asarray(terms)
    yield "vocabulary", found[np.argsort(np.asarray(places))] if found.size else found
    weights = getattr(layer, "idf_weights_const", None)
    if weights is not None:
        yield "TF-IDF weights", np.asarray(weights)


def seed_generators_of(model: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Those of the layers of a model, and of models in it, each once."""
    found = (generator for layer in layers_of(model) for generator in layer._seed_generators)
    return list({id(generator): generator for generator in found}.values())


def is_seed_state(variable: Any) -> bool:
    """Whether a variable is the state of a seed generator of Keras."""
    return isinstance(variable, keras.Variable) and variable.name == "seed_generator_state"


def global_seed_generator(make: bool) -> keras.random.SeedGenerator | None:
    """The one that Keras' random functions take without a seed; None if there is none yet and none is to be made."""
    found: keras.random.SeedGenerator | None = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if found is None and make:
        # Its seed is drawn from Python's generator, of which scripts may need the same numbers on all ranks.
        state = random.getstate()
        found = seed_generator.global_seed_generator()
        random.setstate(state)
    return found


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
