"""Everything that depends on private names of Keras, so that a new release affects only this file."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from tfdist import errors
from tfdist.native import adapter, requirement

try:
    from keras.src import api_export
    from keras.src.backend.common import global_state
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.random import seed_generator
    from keras.src.saving import object_registration
    from keras.src.trainers.data_adapters import array_data_adapter, array_slicing
    from keras.src.utils import io_utils, python_utils
except ImportError as error:
    adapter.record()  # a TensorFlow that is too old brings such a Keras along
    raise errors.BuildError(
        f"Keras {keras.__version__} is installed, and tfdist needs a newer one: {error}. Install it: "
        f"pip install {requirement.of('keras')}"
    ) from error

# What another optimizer of the same class can have too.
_PLAIN = (bool, int, float, str, bytes, types.NoneType, types.FunctionType, np.generic, np.ndarray)
# By which attributes callbacks act, by the names of the callbacks.
_DECIDES_BY = {
    "EarlyStopping": ("wait", "best", "best_epoch", "best_weights", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
# Keras 3.12 has no name for it.
_GLOBAL_SEED_GENERATOR = "global_seed_generator"


def dataset_of_arrays(
    arrays: tuple[Any, Any, Any], batch_size: int | None, steps: int, shuffle: Any, class_weight: Any
) -> tuple[Any, int]:
    """What `fit` makes of arrays: the `tf.data.Dataset`, and how many batches that has.

    Args:
        arrays: Inputs, targets and weights of the samples, as `fit` takes them.
        batch_size: None for as large batches as make so many steps.
        steps: In an epoch.
        shuffle: As `fit` takes it.
        class_weight: As `fit` takes it.
    """
    adapted = array_data_adapter.ArrayDataAdapter(*arrays, batch_size, steps, shuffle, class_weight)
    return adapted.get_tf_dataset(), adapted.num_batches


def split_arrays(arrays: tuple[Any, Any, Any], share: float) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """The arrays to train on, and those to validate with, as `fit` splits them by `validation_split`."""
    training, validation = array_slicing.train_validation_split(arrays, validation_split=share)
    return training, validation


def publish_as(subclass: type, base: type) -> None:
    """Makes Keras save objects of `subclass` as objects of `base`.

    A model saved during distributed training must load without tfdist installed. Keras looks up the public or
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
    """What provides the rate: a `keras.Variable`, a `LearningRateSchedule` or a callable."""
    return inner_optimizer(optimizer)._learning_rate


def set_learning_rate_source(optimizer: Any, source: Any) -> None:
    """Replaces a schedule without touching the optimizer's variables."""
    inner_optimizer(optimizer)._learning_rate = source


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer with the learning rate and the slots: the inner one of a `LossScaleOptimizer`, else itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def complete_copy(optimizer: Any, copy: Any) -> None:
    """Gives a copy that was made by the configuration what that lacks: which variables do not decay, and the numbers,
    texts, arrays and functions of a class that is not Keras' own. Neither of the two is built.
    """
    inner, inner_copy = inner_optimizer(optimizer), inner_optimizer(copy)
    kept = ["_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"]
    if not type(inner).__module__.startswith("keras."):
        own = vars(inner).keys() - vars(keras.optimizers.Optimizer(0.1)).keys()
        kept += [
            name for name in own if all(isinstance(leaf, _PLAIN) for leaf in keras.tree.flatten(vars(inner)[name]))
        ]
    for name in kept:
        if name in vars(inner):
            setattr(inner_copy, name, vars(inner)[name])


def decides_by(callback: Any) -> tuple[str, ...]:
    """The attributes that say when a callback of Keras acts next, and how; not its arguments. Empty for most."""
    found = [names for name, names in _DECIDES_BY.items() if isinstance(callback, getattr(keras.callbacks, name))]
    return tuple(name for names in found for name in names)


def prepare_loss_scaling(prepared: Callable[[Any, Any, Any], AbstractContextManager[Any]]) -> None:
    """Makes every `LossScaleOptimizer` apply the gradients of the context `prepared(optimizer, gradients, variables)`.

    Keras' `compile` may wrap any optimizer in one, which calls the inner optimizer only after it has decided, from the
    gradients, whether to update.
    """
    kind = keras.optimizers.LossScaleOptimizer
    original = kind.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        with prepared(self, grads, trainable_variables) as gradients:
            original(self, gradients, trainable_variables)

    kind.apply = apply


def replace_in_h5(replaced: Callable[[Any], dict[int, Any]]) -> None:
    """Makes files of whole models in HDF5 hold other values of an optimizer's variables, by their places: Keras does
    not ask the optimizer there, as it does for its own format.
    """
    original = legacy_h5_format.save_optimizer_weights_to_hdf5_group

    @functools.wraps(original)
    def save(group: Any, optimizer: Any) -> None:
        original(group, optimizer)
        for place, value in replaced(optimizer).items():
            group["optimizer_weights"][str(optimizer.variables[place].path)][()] = value

    legacy_h5_format.save_optimizer_weights_to_hdf5_group = save


def accumulators(optimizer: Any) -> list[Any]:
    """The accumulated gradients since the last update. They are a rank's own, so they differ by rank."""
    slots = getattr(inner_optimizer(optimizer), "_accumulated_gradients", [])
    return [slot for slot in slots if slot is not None]


def slots(optimizer: Any) -> list[tuple[Any, Any]]:
    """Pairs of a trainable variable and one of its optimizer variables, such as its momentum.

    Keras keeps slots in lists in the order of the trainable variables, with None for a variable without a slot.
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
    """A layer's own weights that only gradients change, including frozen ones."""
    return list(layer._trainable_variables)


def variables_in(optimizer: Any) -> list[Any]:
    """The variables that a built optimizer updates; empty before it is built."""
    return list(getattr(inner_optimizer(optimizer), "_trainable_variables", []))


def metrics_reader(model: Any) -> Any:
    """The method with which `fit` and `evaluate` read metrics at the end of an epoch."""
    return model._get_metrics_result_or_logs


def set_metrics_reader(model: Any, reader: Any) -> None:
    """Replaces that method on this instance."""
    model._get_metrics_result_or_logs = reader


@contextlib.contextmanager
def weighing_losses(model: Any, weight: Any) -> Iterator[None]:
    """Inside, the mean that `fit` reports of each output's loss gives this weight to a batch of unknown size, not 1.

    For a batch of known size Keras uses the number of samples, and for the sum of the losses it always does.
    """
    means = list(getattr(getattr(model, "_compile_loss", None), "metrics", ()))
    for mean in means:
        original = mean.update_state

        def update_state(value: Any, sample_weight: Any = None, original: Any = original) -> None:
            original(value, sample_weight=weight if sample_weight is None else sample_weight)

        vars(mean)["update_state"] = update_state
    try:
        yield
    finally:
        for mean in means:
            del vars(mean)["update_state"]


def set_initial_epoch(model: Any, epoch: int) -> None:
    """The epoch from which a `fit` that is about to begin starts."""
    model._initial_epoch = epoch


def callbacks_of_fit(callback: keras.callbacks.Callback) -> list[Any]:
    """The list of callbacks that contains this callback, in order; empty if something else calls it."""
    for frame, _ in traceback.walk_stack(None):
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList) and callback in caller.callbacks:
            return list(caller.callbacks)
    return []


def call_last(callback: keras.callbacks.Callback) -> list[Any]:
    """Has the list of callbacks that is running call this one after its others, from now on. Returns those, without
    what Keras adds; empty if no list is running.
    """
    for frame, _ in traceback.walk_stack(inspect.currentframe()):  # without one it leaves out the nearest
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            if callback not in caller.callbacks:
                caller.callbacks.append(callback)
            kept = (keras.callbacks.History, keras.callbacks.ProgbarLogger, type(callback))
            return [each for each in caller.callbacks if type(each) not in kept]
    return []


def has_averages_in_weights(callback: Any) -> bool:
    """Whether a callback has put averages in the place of the weights, which it will put back."""
    return isinstance(callback, keras.callbacks.SwapEMAWeights) and bool(callback._ema_weights_in_model)


def arguments_of_fit(model: Any) -> Mapping[str, Any]:
    """The arguments of the running Keras `fit`, with `initial_epoch` as restored; empty if none is running."""
    given = _arguments_of("fit", model)
    if not given:
        return {}
    return {**given, "initial_epoch": getattr(model, "_initial_epoch", None) or given["initial_epoch"]}


def arguments_of_evaluate(model: Any) -> Mapping[str, Any]:
    """The arguments of the running Keras `evaluate` that is no part of `fit`; empty if none is running."""
    given = _arguments_of("evaluate", model)
    return {} if given.get("kwargs", {}).get("_use_cached_eval_dataset") else given


def _arguments_of(method: str, model: Any) -> Mapping[str, Any]:
    for frame, _ in traceback.walk_stack(None):
        # The frame of the decorator around it: inside of `fit`, a `validation_split` has replaced the data.
        names = frame.f_locals if frame.f_code.co_name == "error_handler" else {}
        if getattr(names.get("fn"), "__name__", "") == method and names["args"][0] is model:
            given = inspect.signature(names["fn"]).bind(*names["args"], **names["kwargs"])
            given.apply_defaults()
            return given.arguments
    return {}


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The dimensions over which a built layer computes its moments: all except its axis."""
    axes: list[int] = layer._reduction_axes
    return axes


def moments_of_process(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Mean and variance of a batch, as Keras computes them if `synchronized` is False."""
    if mask is None:
        mean, variance = keras.ops.moments(inputs, axes=reduction_axes(layer))
    else:
        mean, variance = keras.layers.BatchNormalization._moments(layer, inputs, mask)
    return mean, variance


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a model, including those of nested models."""
    yield from model._flatten_layers()


def parts_of(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The direct sublayers of a layer or model, including those in lists and dicts."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def own_variables(layer: keras.layers.Layer) -> list[Any]:
    """The weights of a layer, without those of its sublayers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def lookup_of(layer: keras.layers.Layer) -> Iterator[tuple[str, Any]]:
    """The vocabulary of a `StringLookup` or `IntegerLookup`: its terms in order, without the mask and OOV tokens, and
    their weights if it has any.
    """
    keys, values = layer.lookup_table.export() if layer.lookup_table.size() else ((), ())
    terms, places = (values, keys) if layer.invert else (keys, values)
    found = np.asarray(terms)
    yield "vocabulary", found[np.argsort(np.asarray(places))] if found.size else found
    weights = getattr(layer, "idf_weights_const", None)
    if weights is not None:
        yield "TF-IDF weights", np.asarray(weights)


def seed_generators_of(model: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """The seed generators of a model's layers, including nested models, each once."""
    found = (generator for layer in layers_of(model) for generator in layer._seed_generators)
    return list({id(generator): generator for generator in found}.values())


def is_seed_state(variable: Any) -> bool:
    """Whether a variable is the state of a seed generator of Keras."""
    return isinstance(variable, keras.Variable) and variable.name == "seed_generator_state"


def global_seed_generator(make: bool) -> keras.random.SeedGenerator | None:
    """The seed generator Keras uses without a seed; None if it does not exist yet and must not be created."""
    found: keras.random.SeedGenerator | None = global_state.get_global_attribute(_GLOBAL_SEED_GENERATOR)
    if found is None and make:
        # Its seed is drawn from Python's random generator, whose state scripts may need to be equal on all ranks.
        state = random.getstate()
        found = seed_generator.global_seed_generator()
        random.setstate(state)
    return found


def layers_with_keras_moments(model: keras.Model) -> Iterator[keras.layers.BatchNormalization]:
    """The batch normalisations of a model, including nested models, whose moments have not been replaced.

    Keras computes the moments of a training batch only with the method `_moments(inputs, mask)`.
    `SyncBatchNormalization` overrides it.
    """
    kind = keras.layers.BatchNormalization
    for layer in layers_of(model):
        if isinstance(layer, kind) and getattr(layer._moments, "__func__", None) is kind._moments:
            yield layer


def set_moments(layer: keras.layers.BatchNormalization, moments: Callable[[Any, Any], Any]) -> None:
    """Replaces that method on this instance, without Keras tracking the attribute."""
    vars(layer)["_moments"] = moments


def reset_moments(layer: keras.layers.BatchNormalization) -> None:
    """Undoes `set_moments`."""
    del vars(layer)["_moments"]


def print_message(message: str) -> None:
    """Prints like Keras, and is silent if Keras is."""
    io_utils.print_msg(message)


def has_call(model: keras.Model) -> bool:
    """Whether a model can be called: one with a `train_step` of its own need not be."""
    return getattr(model.call, "__func__", None) is not keras.Model.call


def has_own_train_step(model: keras.Model) -> bool:
    """Whether the model's class overrides Keras' training step."""
    return type(model).train_step is not keras.Model.train_step


def has_own_build(layer: keras.layers.Layer) -> bool:
    """Whether building the layer may create weights of its own, and not only those of its sublayers."""
    return not python_utils.is_default(layer.build) and type(layer).build is not keras.Sequential.build
