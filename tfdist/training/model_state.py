"""The state of a training: which variables belong to it, which of them all ranks share, and which are local to a rank.

Broadcasts, backups and elastic commits ask here. Backups take it as arrays by name, which another process can restore.
It contains no files and no position in the data.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import errors
from tfdist.native import keras_version
from tfdist.ops.allgather import allgather
from tfdist.ops.allreduce import grouped_allreduce
from tfdist.ops.broadcast import broadcast_variables
from tfdist.ops.object import broadcast_object
from tfdist.ops.reduction import Average
from tfdist.training import adapted_state, model_optimizer, optimizer, random_state
from tfdist.training.local_variable import without
from tfdist.world import runtime


def variables_of(model: keras.Model, optimizers: Iterable[Any] | None = None) -> list[Any]:
    """The weights of a model and the variables of its optimizers, or of others, each once; and what those update that
    is no weight of the model, such as a `tf.Variable` that is an attribute.
    """
    found = list(model_optimizer.optimizers_of(model) if optimizers is None else optimizers)
    variables = [*model.weights, *(variable for each in found for variable in each.variables)]
    variables += model_optimizer.updated_beside(model, found)
    return list({id(variable): variable for variable in variables}.values())


def shared(variables: Iterable[Any], own: Iterable[Any] = ()) -> list[Any]:
    """Those that are equal on all ranks: not `own`, nor random state, or all ranks would drop the same units."""
    return [variable for variable in without(variables, own) if not keras_version.is_seed_state(variable)]


def statistics_of_rank(model: keras.Model, keep: Sequence[Any] = ()) -> list[Any]:
    """The floating non-trainable weights, such as moving means, that differ between ranks; every rank must call it.

    Frozen weights do not differ. They are left out for their size, and because the floating-point mean of three equal
    numbers need not equal that number. Weights of local layers belong to their rank.
    """
    floating = [v for v in model.non_trainable_weights if v.dtype.startswith(("float", "bfloat"))]
    candidates = without(floating, (*model_optimizer.local_variables(model), *keep))
    if not candidates or runtime.size() == 1:
        return []
    checksums = np.array([[zlib.crc32(np.asarray(v.value).tobytes()) for v in candidates]], np.int64)
    by_rank = allgather(checksums, name="checksums of statistics").numpy()
    return [v for v, column in zip(candidates, by_rank.T, strict=True) if len(set(column)) > 1]


def average_statistics(model: keras.Model, keep: Sequence[Any] = ()) -> list[str]:
    """Averages the weights that training changes other than by gradients, such as moving means, except `keep`.

    Returns:
        The paths of those that no layer of Keras explains, so that they may be something else.
    """
    statistics = statistics_of_rank(model, keep)
    if not statistics:
        return []
    values = [tf.convert_to_tensor(variable.value) for variable in statistics]
    for variable, value in zip(statistics, grouped_allreduce(values, op=Average, name="statistics"), strict=True):
        variable.assign(value)
    adapted_state.follow_variables(model)
    known = [layer for layer in keras_version.layers_of(model) if _is_of_keras(layer)]
    strangers = without(statistics, [variable for layer in known for variable in keras_version.own_variables(layer)])
    return [getattr(variable, "path", variable.name) for variable in strangers]


def _is_of_keras(layer: keras.layers.Layer) -> bool:
    """Whether Keras says what its weights are: those of a model are the user's."""
    return isinstance(layer, keras.layers.BatchNormalization) or type(layer).__module__.startswith("keras.")


def begin_equal(model: keras.Model, root_rank: int, keep: Sequence[Any] = ()) -> None:
    """Runs `broadcast` at the start of a `fit`, after comparing what a broadcast does not cover.

    Raises:
        ConfigError: As `broadcast` does.
        MismatchError: If a preprocessing layer was adapted differently on the ranks.
    """
    adapted_state.require_equal_before_broadcast(model, model_optimizer.local_layers(model))
    broadcast(model, root_rank, keep)


def broadcast(model: keras.Model, root_rank: int, keep: Sequence[Any] = ()) -> None:
    """Gives every rank the weights and optimizer state of one rank. State local to a rank stays: seeds of random
    layers, partially accumulated gradients, and local variables with their slots.

    Args:
        model: A built model.
        root_rank: The rank whose state all ranks get.
        keep: Variables that stay unchanged on each rank.

    Raises:
        ConfigError: If the model has no weights.
    """
    if not model.weights:
        raise errors.ConfigError(
            f"model {model.name!r} has no weights, even after tracing its first step, so there is nothing to train. "
            "Create variables with add_weight, or in layers that are attributes of the model."
        )
    model_optimizer.build_compiled(model)
    if len(model_optimizer.optimizers_of(model)) > 1:
        # Keras builds the others in the first step that uses them, which not every rank may have taken.
        layout = broadcast_object(model_optimizer.layout_of(model), root_rank, name="what optimizers update")
        model_optimizer.build_as(model, layout)
    variables = shared(variables_of(model), model_optimizer.state_of_rank(model, keep))
    broadcast_variables(variables, root_rank, name="weights and optimizer state")
    adapted_state.follow_variables(model)


def set_rate_factor(target: keras.optimizers.Optimizer, factor: float) -> None:
    """Scales a rate, unless it has that factor already: scaling again would round it."""
    if factor != optimizer.learning_rate_scale(target):
        optimizer.scale_learning_rate(target, factor)


def rates_of(model: keras.Model) -> dict[str, Any]:
    """The current learning rates, bit-exact, with their factors."""
    rates: dict[str, Any] = {}
    for prefix, each, _ in _optimizers(model):
        rates[f"{prefix} rate factor"] = np.array(optimizer.learning_rate_scale(each))
        rate = keras_version.learning_rate_of(each)
        if isinstance(rate, keras.Variable):
            rates[f"{prefix} rate"] = rate.numpy()
    return rates


def set_rates(model: keras.Model, state: dict[str, Any]) -> None:
    """Restores what `rates_of` returned, as far as it is in `state`."""
    for prefix, each, _ in _optimizers(model):
        if f"{prefix} rate factor" in state:
            set_rate_factor(each, float(state[f"{prefix} rate factor"]))
        if f"{prefix} rate" in state:
            keras_version.learning_rate_of(each).assign(state[f"{prefix} rate"])


def capture(model: keras.Model) -> dict[str, Any]:
    """The state that is equal on all ranks, for another process: weights, and optimizers with one process' rate."""
    arrays = {f"weight/{index}": value for index, value in enumerate(model.get_weights())}
    for prefix, each, places in _optimizers(model):
        store: dict[str, Any] = {}
        each.save_own_variables(store)
        arrays |= {f"{prefix}/{name}": value for name, value in store.items()}
        arrays[f"{prefix} class"] = np.frombuffer(_class_of(each).encode(), np.uint8)
        if places is not None:
            arrays[f"{prefix} updates"] = np.array(places, np.int64)
    return arrays


def restore(model: keras.Model, arrays: dict[str, Any]) -> None:
    """Restores what `capture` returned; the rate is scaled by the current factor.

    Raises:
        ConfigError: As `model_optimizer.build_as` does.
        ValueError: If it is from another model or optimizer.
    """
    _build_optimizers(model, arrays)
    _refuse_another_model(model, arrays)
    model.set_weights([arrays[f"weight/{index}"] for index in range(len(model.weights))])
    for prefix, each, _ in _optimizers(model):
        each.load_own_variables(below(arrays, f"{prefix}/"))


def capture_of_rank(model: keras.Model, in_epoch: bool) -> dict[str, Any]:
    """The state that is local to a rank: random state, partially accumulated gradients, local variables with their
    slots, and in the middle of an epoch also moving statistics. Also the current rates; `capture` has those of one
    process. Every rank must call it.
    """
    state = {f"own/{index}": variable.numpy() for index, variable in enumerate(_own_variables(model))}
    state |= random_state.state_of_process() | rates_of(model)
    if in_epoch:
        places = {id(variable): index for index, variable in enumerate(model.weights)}
        state |= {f"weight/{places[id(variable)]}": variable.numpy() for variable in statistics_of_rank(model)}
    return state


def restore_of_rank(model: keras.Model, state: dict[str, Any]) -> None:
    """Restores what `capture_of_rank` returned, except the rates; does nothing if `state` is empty."""
    for prefix, variables in (("own", _own_variables(model)), ("weight", model.weights)):
        for index, variable in enumerate(variables):
            if f"{prefix}/{index}" in state:
                variable.assign(state[f"{prefix}/{index}"])
    adapted_state.follow_variables(model)
    if state:  # of this process; what was saved has its number already
        random_state.restored(model, state)


def below(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose names start with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _own_variables(model: keras.Model) -> list[Any]:
    seeds = [variable for variable in model.variables if keras_version.is_seed_state(variable)]
    return [*seeds, *model_optimizer.state_of_rank(model)]


def _optimizers(model: keras.Model) -> Iterator[tuple[str, Any, list[int] | None]]:
    """The prefix of an optimizer's array names, the optimizer, and the weights it updates once built."""
    layout = model_optimizer.layout_of(model)
    for number, (each, places) in enumerate(zip(model_optimizer.optimizers_of(model), layout, strict=True)):
        yield (f"optimizer {number}" if number else "optimizer"), each, places


def _build_optimizers(model: keras.Model, arrays: dict[str, Any]) -> None:
    """Builds those that were built when the state was captured: Keras builds one in the first step that uses it."""
    layout: model_optimizer.Layout = []
    for prefix, _, _ in _optimizers(model):
        places = arrays.get(f"{prefix} updates")
        layout.append(None if places is None else [int(place) for place in places])
    model_optimizer.build_as(model, layout)


def _class_of(optimizer: Any) -> str:
    """Its name, with that of the optimizer inside."""
    inner = keras_version.inner_optimizer(optimizer)
    return ".".join(type(each).__name__ for each in dict.fromkeys((optimizer, inner)))


def _refuse_another_model(model: keras.Model, arrays: dict[str, Any]) -> None:
    """Raises ValueError: Keras would restore the variables that fit and silently leave the others unchanged."""
    for prefix, each, _ in _optimizers(model):
        saved = bytes(arrays.get(f"{prefix} class", b"")).decode()  # files of before have none
        if saved and saved != _class_of(each):
            raise ValueError(
                f"it is from another model or optimizer: {saved}, whose variables mean something else in "
                f"{_class_of(each)}. Use the same optimizer, or remove the folder."
            )
    parts = [("weight", model.weights), *((prefix, each.variables) for prefix, each, _ in _optimizers(model))]
    for part, variables in parts:
        found = {name: tuple(array.shape) for name, array in below(arrays, f"{part}/").items()}
        expected = {str(index): tuple(variable.shape) for index, variable in enumerate(variables)}
        if found != expected:
            raise ValueError(
                f"it is from another model or optimizer: its {part} variables have the shapes {list(found.values())}, "
                f"but expected were {list(expected.values())}. Use the same model, or remove the folder."
            )
