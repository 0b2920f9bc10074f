"""The state that preprocessing layers learn from data and keep outside variables: makes sure that all ranks have the
same, and use it.

`Normalization` uses constants made from its variables, a vocabulary is a table, boundaries are a list: broadcasting
weights does not update them.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist import errors
from tfdist.native import keras_version
from tfdist.ops.object import allgather_object, broadcast_object
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set

_logger = logging.getLogger("tfdist")

_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
# Their `finalize_state` takes the counts since its last call, and discards what was loaded from a file or a list.
_FOLLOW_NO_VARIABLES = (*_LOOKUPS, keras.layers.Discretization, keras.layers.TextVectorization)
# These keep what they learn in their sublayers.
_OTHERS = (keras.layers.TextVectorization, keras.utils.FeatureSpace)
# The attribute of a layer with the constants that traced functions of the model may contain.
_USED = "_tfdist_constants_in_use"
# What to do on all ranks if only one has adapted the layer.
_SET_FROM_ONE = {
    "vocabulary": "write layer.set_vocabulary(tfdist.broadcast_object(layer.get_vocabulary(), {root}))",
    "boundaries": "write layer.bin_boundaries = tfdist.broadcast_object(layer.bin_boundaries, {root})",
}


class AdaptedState(NamedTuple):
    """One piece of state that a layer has learned, or was given instead.

    Attributes:
        path: The names of the enclosing layers and its own.
        what: The kind of state, such as "vocabulary".
        value: The terms in order, or the numbers.
        follows: Whether the layer derives it from variables, so that it is equal if they are.
    """

    path: str
    what: str
    value: np.ndarray[Any, Any]
    follows: bool = False

    def digest(self) -> str:
        """Equal on two ranks if the values are."""
        value = self.value
        if value.dtype == object:
            lengths = np.fromiter(map(len, value), np.int64, len(value))
            content = lengths.tobytes() + b"".join(value)
        else:
            content = np.ascontiguousarray(value).tobytes()
        return f"{value.dtype} {value.shape} {hashlib.sha256(content).hexdigest()}"


class _Entry(NamedTuple):
    """The part that is sent."""

    what: str
    digest: str
    follows: bool
    is_unadapted: bool


def adapted_state_of(source: keras.layers.Layer, but: Collection[keras.layers.Layer] = ()) -> list[AdaptedState]:
    """The adapted state of the preprocessing layers of a model, or of a layer and those in it. Local, no communication.

    Args:
        source: A model, or any layer, built or not.
        but: Layers to leave out, with their sublayers.
    """
    left_out = {id(layer) for layer in but}
    return [
        AdaptedState(path, what, value, _makes_constants(layer))
        for path, layer in _walk(source, left_out)
        for what, value in _learned(layer)
    ]


def require_equal(
    source: keras.layers.Layer,
    but: Collection[keras.layers.Layer] = (),
    process_set: ProcessSet = global_process_set,
) -> int:
    """Compares the adapted state of preprocessing layers on all ranks; every rank calls it.

    Args:
        source: A model, or any layer, including one used only in `dataset.map`.
        but: Layers that are local to each rank.
        process_set: The ranks that take part.

    Returns:
        How many values were compared; the same on every rank.

    Raises:
        MismatchError: The same on every rank, if any differ; names the layer, what differs and what to do.
    """
    states = adapted_state_of(source, but)
    if process_set.size() > 1:
        _refuse_differences(states, _gathered(states, process_set), process_set)
    return len(states)


def require_equal_before_broadcast(model: keras.Model, local: Collection[keras.layers.Layer] = ()) -> None:
    """Compares adapted state before all ranks get the weights of rank 0; every rank calls it.

    Constants derived from variables will be equal: rank 0 only warns if several ranks have different ones.

    Args:
        model: A model.
        local: Layers that are local to each rank.

    Raises:
        MismatchError: The same on every rank, if anything else differs.
    """
    if runtime.size() == 1:
        return
    states = adapted_state_of(model, local)
    by_rank = _gathered(states)
    _warn_of_parts([state.path for state in states if state.follows], [_only(found, True) for found in by_rank])
    _refuse_differences([state for state in states if not state.follows], [_only(found, False) for found in by_rank])


def follow_variables(model: keras.layers.Layer) -> None:
    """Makes the layers of a model recompute their constants after variables were assigned.

    A traced function contains the constants of its trace, so it is traced again if they have changed.
    """
    changed = False
    for layer in keras_version.layers_of(model):
        if _makes_constants(layer):
            used = vars(layer).get(_USED, _constants(layer))
            layer.finalize_state()
            vars(layer)[_USED] = _constants(layer)
            changed |= used != vars(layer)[_USED]
    if changed and isinstance(model, keras.Model):
        drop_traces(model)


def drop_traces(model: keras.Model) -> None:
    """Makes the steps of a model be traced again, even during a `fit`."""
    model.test_function = model.predict_function = None
    outermost: Any = model.train_function
    if outermost is None:
        return
    model.make_train_function(force=True)
    made: Any = model.train_function
    innermost = None
    # When `fit` resumes, the train function is wrapped by objects that hold it as an attribute of this name.
    stand_in = outermost
    while hasattr(stand_in, "train_function"):
        innermost, stand_in = stand_in, stand_in.train_function
    if innermost is not None:
        innermost.train_function = made
        model.train_function = outermost


def _makes_constants(layer: keras.layers.Layer) -> bool:
    """Whether `finalize_state` of a layer makes constants from its variables."""
    if isinstance(layer, _FOLLOW_NO_VARIABLES) or not callable(getattr(layer, "finalize_state", None)):
        return False
    return bool(keras_version.own_variables(layer))


def _constants(layer: keras.layers.Layer) -> str:
    return ", ".join(AdaptedState("", what, value).digest() for what, value in _learned(layer))


def _walk(layer: keras.layers.Layer, seen: set[int], path: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Each layer once, with its path: the names of the enclosing layers except the outermost, and its own."""
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path or str(layer.name), layer
    for part in keras_version.parts_of(layer):
        if isinstance(layer, keras.layers.TextVectorization):  # users do not see its part that holds the vocabulary
            yield from _walk(part, seen, path or str(layer.name))
        else:
            yield from _walk(part, seen, f"{path}/{part.name}".lstrip("/"))


def _learned(layer: keras.layers.Layer) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The kind and value of each piece of state; nothing for a layer without any yet."""
    if isinstance(layer, keras.layers.Normalization):
        if layer.input_mean is not None:
            yield from (("mean", np.asarray(layer.input_mean)), ("variance", np.asarray(layer.input_variance)))
        elif layer.mean is not None:
            yield from (("mean", np.asarray(layer.mean)), ("variance", np.asarray(layer.variance)))
    elif isinstance(layer, _LOOKUPS):
        yield from keras_version.lookup_of(layer)
    elif isinstance(layer, keras.layers.Discretization):
        if layer.bin_boundaries is not None:
            yield "boundaries", np.asarray(layer.bin_boundaries, np.float64)
    elif not isinstance(layer, _OTHERS) and (hasattr(layer, "adapt") or hasattr(layer, "finalize_state")):
        ordinary = vars(keras.layers.Layer())
        for name, value in vars(layer).items():
            if not name.startswith("_") and name not in ordinary:
                yield from ((name, array) for array in _arrays(value))


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """A value of a custom layer as an array, if it is an array or plain data."""
    if isinstance(value, (np.ndarray, np.generic, int, float)) or (tf.is_tensor(value) and hasattr(value, "numpy")):
        yield np.asarray(value)
    elif isinstance(value, dict) and value and all(map(_is_plain, (*value, *value.values()))):
        yield _terms(sorted(map(repr, value.items())))
    elif isinstance(value, (list, tuple)) and value and all(map(_is_plain, value)):
        yield _terms(list(map(repr, value)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, bytes, int, float, np.generic))


def _terms(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([text.encode() for text in texts], object)


def _gathered(states: Sequence[AdaptedState], process_set: ProcessSet = global_process_set) -> list[list[_Entry]]:
    """The entries of each rank, in order."""
    own = [_Entry(state.what, state.digest(), state.follows, _is_unadapted(state)) for state in states]
    return allgather_object(own, name="adapted state", process_set=process_set)


def _only(entries: Sequence[_Entry], follows: bool) -> list[_Entry]:
    return [entry for entry in entries if entry.follows is follows]


def _warn_of_parts(paths: Sequence[str], by_rank: Sequence[Sequence[_Entry]]) -> None:
    """Warns if ranks adapted a layer differently. State before adapting does not count: rank 0 may adapt for all."""
    columns = zip(paths, zip(*by_rank, strict=False), strict=False)
    found = {
        path: None for path, column in columns if len({entry.digest for entry in column if not entry.is_unadapted}) > 1
    }
    if found and runtime.rank() == 0:
        _logger.warning(
            "%s was adapted to different data on each rank; all ranks use the result of rank 0, learned from its "
            "shard only. Adapt it to the whole dataset, before tfdist.shard.",
            ", ".join(map(repr, found)),
        )


def _is_unadapted(state: AdaptedState) -> bool:
    """For a `Normalization`: whether its variables have their initial values."""
    return state.follows and bool(np.all(np.equal(state.value, 1 if state.what == "variance" else 0)))


def _refuse_differences(
    states: Sequence[AdaptedState], by_rank: Sequence[Sequence[_Entry]], process_set: ProcessSet = global_process_set
) -> None:
    if all(found == by_rank[0] for found in by_rank):
        return
    kinds = [[entry.what for entry in found] for found in by_rank]
    other = next((rank for rank, found in enumerate(kinds) if found != kinds[0]), None)
    if other is not None:
        own_paths = [f"{state.what} of {state.path!r}" for state in states]
        paths = allgather_object(own_paths, name="adapted layers", process_set=process_set)
        ranks = process_set.ranks
        raise errors.MismatchError(
            f"preprocessing layers differ between the ranks: {_listed(paths[0])} on rank {ranks[0]}, "
            f"{_listed(paths[other])} on rank {ranks[other]}. Make the same layers on each rank, and adapt them to "
            "the whole dataset, before tfdist.shard."
        )
    raise errors.MismatchError(_first_difference(states, by_rank, process_set))


def _first_difference(
    states: Sequence[AdaptedState], by_rank: Sequence[Sequence[_Entry]], process_set: ProcessSet
) -> str:
    """The same text on every rank; each of them calls it."""
    place = next(place for place, found in enumerate(zip(*by_rank, strict=True)) if len(set(found)) > 1)
    what, value = states[place].what, states[place].value
    first, *_ = ranks = process_set.ranks
    named = (states[place].path, value)
    path, of_first = broadcast_object(named, first, name="adapted state of one rank", process_set=process_set)
    found = allgather_object(_difference(value, of_first), name="differences from one rank", process_set=process_set)
    rank, difference = next((rank, text) for rank, text in zip(ranks, found, strict=True) if text)
    advice = _SET_FROM_ONE.get(what, "share what it has learned with tfdist.broadcast_object").format(root=first)
    return (
        f"the {what} of the layer {path!r} on rank {rank} differs from that of rank {first}: {difference}. Adapt the "
        f"layer to the whole dataset on every rank, before tfdist.shard; or on rank {first} only, and on all ranks "
        f"{advice}."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _difference(here: np.ndarray[Any, Any], first: np.ndarray[Any, Any]) -> str:
    """The difference of a value on this rank from that of the first; empty if there is none."""
    if here.dtype != first.dtype or (here.dtype != object and here.shape != first.shape):
        return f"it has dtype {here.dtype} and shape {here.shape} here, but {first.dtype} and shape {first.shape} there"
    of = f", of {here.size} here and {first.size} there" if here.size != first.size else ""
    for number, (one, other) in enumerate(itertools.zip_longest(here.flat, first.flat)):
        if one != other and (one == one or other == other):  # NaN is not equal to itself
            return f"the first difference is at index {number}{of}: {_shown(one)} here and {_shown(other)} there"
    return "" if here.dtype == object or here.tobytes() == first.tobytes() else "its bits differ"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return repr(value.decode(errors="replace")) if isinstance(value, bytes) else str(value)
