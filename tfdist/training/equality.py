"""Checks that variables have the same values on all ranks: `check_equal` and its parts. Callers decide when to check.

Every rank computes a digest of each variable, and the ranks exchange the digests; only variables whose digests differ
are compared by value with those of the first rank, piece by piece.
"""

from __future__ import annotations

import hashlib
import logging
import math
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import config, errors
from tfdist.native import hardware, keras_version
from tfdist.ops import allgather, broadcast
from tfdist.ops.digest import digest_of
from tfdist.ops.graph import call
from tfdist.ops.object import allgather_object, broadcast_object
from tfdist.training import adapted_state, model_optimizer
from tfdist.training import optimizer as optimizer_module
from tfdist.training.gradients import record_of
from tfdist.training.local_variable import without
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")

# Of the norm: what unequal hardware makes of equal gradients is about 1e-7 a step.
TOLERANCE = 1e-3
# That values are compared in, so in memory at once.
PIECE_BYTES = 1 << 24
_NAMED = 5
_LEARNED = "what layers have learned"
_BEGIN = (
    "The ranks began with different weights, or something but the distributed optimizer changes them. Give all ranks "
    "those of one: model.fit(..., callbacks=[tfdist.callbacks.BroadcastGlobalVariablesCallback(0)]), or take "
    "tfdist.callbacks.DataParallel(), which does all that a distributed fit needs."
)
# Of an epoch, in which a model is looked at; in one that is not distributed nothing is found.
_MOST_BATCHES = 100
_compared: weakref.WeakSet[Any] = weakref.WeakSet()
_REFUSED = -1  # in place of the number of parts
_REMEDY = (
    "Start all ranks from the same values, for example with tfdist.broadcast_variables(model.weights, root_rank=0), "
    "and apply only reduced gradients. Variables that are not trained, such as moving statistics, differ by rank: "
    "check the model instead, which leaves them out."
)


@dataclass(frozen=True)
class Part:
    """One value that must be equal on all ranks.

    Attributes:
        name: Its name in errors, such as the path of a variable. May differ by rank.
        source: `keras.Variable`, `tf.Variable` or `np.ndarray` of numbers.
    """

    name: str
    source: Any

    def read(self) -> Any:
        """The current content: a tensor on its device, or the array."""
        if isinstance(self.source, np.ndarray):
            return self.source
        return tf.convert_to_tensor(self.source.value if isinstance(self.source, keras.Variable) else self.source)

    def kind(self) -> str:
        """Dtype and shape, such as "float32 (3, 4)"."""
        source = self.source.value if isinstance(self.source, keras.Variable) else self.source
        return f"{tf.as_dtype(source.dtype).name} {tuple(source.shape)}"


@dataclass(frozen=True)
class Difference:
    """One part whose bits differ between the ranks.

    Attributes:
        place: Index in the list of parts.
        name: Name of the part on this rank.
        relative: For each rank that differs from the first: norm of the difference / norm on the first rank. NaN if
            only one side is finite, infinity if the first rank has only zeros.
        drifted: Whether the difference exceeds rounding.
    """

    place: int
    name: str
    relative: dict[int, float]
    drifted: bool

    @property
    def size(self) -> float:
        """The largest value over all ranks, for sorting: a value that is not finite counts as larger than any
        number.
        """
        return max(math.inf if math.isnan(value) else value for value in self.relative.values())


def check_equal(target: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Raises an error on every rank if values that must be equal on all ranks differ.

    You need it in a custom training loop, after the first step and from time to time: if weights drift apart, each rank
    silently trains its own model, and no loss shows it. `fit` with `tfdist.callbacks.DataParallel`,
    `BroadcastGlobalVariablesCallback` or `MetricAverageCallback` checks by itself. Use it also for layers in
    `dataset.map`, such as a `Normalization`, which cannot be found from a model. Every rank must call it.

    For a model it compares what training must keep equal: trainable and frozen weights, and all weights and other state
    (vocabularies, boundaries, constants) of adapted layers. Moving statistics, computed from each rank's own batches,
    and the seeds of random layers differ on purpose. For any other layer it compares all weights and adapted state, for
    an optimizer all variables. Variables local to a distributed optimizer are left out.

    It reads the weights once and exchanges one digest per variable.

    Args:
        target: Built Keras model, layer or optimizer, `keras.Variable`, `tf.Variable`, or list of these variables.
        name: Name of the check in errors.
        process_set: The ranks that take part; other ranks must not call it.

    Raises:
        MismatchError: On every rank, if the number of variables, their dtypes or shapes differ, a variable differs from
            that of the first rank by more than 1e-3 of its norm, or integers differ. Names the variables by path.
            Smaller differences are rounding; the first rank warns about them.
        ConfigError: On every rank, if `target` is anything else or has no variables on some rank. Inside a
            `tf.function`.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    for step, (x, y) in enumerate(dataset):
        train_step(x, y)
        if step == 0:
            tfdist.check_equal(model)
    ```
    """
    label = name or "check_equal"
    if not tf.executing_eagerly():
        raise errors.ConfigError(f"{label!r} ran inside a tf.function. Call it outside, between two steps.")
    call.number_of(process_set)
    parts: list[Part] = []
    problem = ""
    try:
        parts = parts_of(target)
    except errors.ConfigError as error:
        problem = str(error)
    differences = compare(parts, label, process_set, problem)
    drifted = [difference for difference in differences if difference.drifted]
    if _LEARNED in [difference.name for difference in drifted]:
        adapted_state.require_equal(target, _local_layers(target), process_set)  # says what differs
    if drifted:
        raise errors.MismatchError(describe(drifted, parts, label, process_set, _REMEDY))
    if differences:
        text = describe_rounding(differences, label, ranks_by_hardware(label, process_set))
        if runtime.rank() == process_set.ranks[0]:
            _logger.warning("%s", text)


def compare_after_step(model: Any, batch: int) -> None:
    """Compares the weights of a model, once, when a step of its `fit` has reduced gradients, on all ranks.

    Not where a callback of tfdist does so, nor in process sets, whose ranks alone would be here.

    Raises:
        MismatchError: On every rank, if they differ by more than rounding.
    """
    if model in _compared or batch >= _MOST_BATCHES:
        return
    shared, sets = _reduced_in(model)
    if not sets:
        return
    _compared.add(model)
    if _is_watched(model) or session.process_sets or sets != {global_process_set}:
        return
    label = "after the first step of fit"
    parts = [part_of(variable) for variable in shared]
    drifted = [difference for difference in compare(parts, label) if difference.drifted]
    if drifted:
        raise errors.MismatchError(describe(drifted, parts, label, global_process_set, _BEGIN))


def _reduced_in(model: Any) -> tuple[list[Any], set[ProcessSet]]:
    """The weights that are not local to a rank, and the process sets in which gradients of any were reduced."""
    weights = without(model.trainable_weights, model_optimizer.local_variables(model))
    records = [record_of(weight) for weight in weights]
    shared = [each for each, record in zip(weights, records, strict=True) if record is None or record.process_set]
    return shared, {record.process_set for record in records if record and record.process_set}


def _is_watched(model: Any) -> bool:
    """Whether a callback compares its weights in this `fit`, or elastic training has given them to all ranks."""
    drift = getattr(getattr(model.train_step, "__self__", None), "drift", None)  # of the callbacks' hook
    return config.is_elastic() or (drift is not None and drift.has_begun())


def parts_of(target: Any) -> list[Part]:
    """What `check_equal` compares.

    Raises:
        ConfigError: If `target` is of another kind, or has nothing to compare.
    """
    is_layer = isinstance(target, keras.layers.Layer)
    learned = adapted_state.adapted_state_of(target, _local_layers(target)) if is_layer else []
    variables = _variables_of(target)
    strangers = [v for v in variables if not isinstance(v, (keras.Variable, tf.Variable))]
    if strangers:
        raise errors.ConfigError(
            "check_equal expects a Keras model, layer or optimizer, a variable, or a list of variables; received "
            f"{strangers[0]!r}."
        )
    if not variables and not learned:
        raise errors.ConfigError(
            f"{getattr(target, 'name', target)!r} has no variables to compare. Build it first: call it on a batch, "
            "or adapt it."
        )
    parts = [part_of(variable) for variable in variables]
    if is_layer:
        # One part, whatever there is: the ranks have equally many then, and paths of layers may differ by rank.
        text = "\n".join(f"{state.what} {state.digest()}" for state in learned)
        parts.append(Part(_LEARNED, np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)))
    return parts


def _variables_of(target: Any) -> list[Any]:
    if isinstance(target, keras.Model):
        return _variables_of_model(target)
    if isinstance(target, keras.layers.Layer):
        return list(target.weights)
    if isinstance(target, keras.optimizers.Optimizer):
        return without(target.variables, optimizer_module.state_of_rank(target))
    return list(target) if isinstance(target, (list, tuple)) else [target]


def _local_layers(target: keras.layers.Layer) -> list[keras.layers.Layer]:
    return model_optimizer.local_layers(target) if isinstance(target, keras.Model) else []


def part_of(variable: Any) -> Part:
    """Wraps a variable, named by its path.

    Raises:
        ConfigError: If its dtype is not numeric.
    """
    part = Part(getattr(variable, "path", None) or variable.name.removesuffix(":0"), variable)
    dtype = tf.as_dtype(variable.dtype)
    if dtype in (tf.string, tf.variant, tf.resource):
        raise errors.ConfigError(f"{part.name} has dtype {dtype.name}; only numeric variables can be compared.")
    return part


def compare(
    parts: Sequence[Part], label: str, process_set: ProcessSet = global_process_set, problem: str = ""
) -> list[Difference]:
    """Returns what differs between the ranks, the same on every rank except for names.

    Args:
        parts: In the same order on every rank.
        label: Name of the collectives in errors.
        process_set: The ranks that take part.
        problem: Why this rank has no parts; raised on every rank.

    Raises:
        ConfigError: If a rank has a problem.
        MismatchError: If the ranks differ in the number of parts, dtypes or shapes.
    """
    session.weights_alike = True
    if process_set.size() == 1:
        if problem:
            raise errors.ConfigError(problem)
        return []
    kinds = [zlib.crc32(part.kind().encode()) for part in parts]
    contents = [part.read() for part in parts]  # no copies; at once, before digests fill the processor's caches
    mine = [_REFUSED] if problem else [len(parts)]
    for kind, content in zip(kinds, contents, strict=True):
        mine += [kind, digest_of(content)]
    gathered = allgather.allgather(np.array(mine, np.int64), name=f"{label}: digests", process_set=process_set)
    by_rank = list(_split(gathered.numpy()))
    _need_equal_lists(by_rank, parts, label, process_set, problem)
    first = by_rank[0]
    places = np.flatnonzero(np.any([numbers[2::2] != first[2::2] for numbers in by_rank], axis=0))
    return _compare_values(parts, [int(place) for place in places], label, process_set)


def describe(
    differences: Sequence[Difference],
    parts: Sequence[Part],
    label: str,
    process_set: ProcessSet,
    advice: str,
) -> str:
    """Describes the differences; the text of the first rank, on every rank of the set.

    Args:
        differences: The result of `compare`.
        parts: The parts passed to `compare`.
        label: Name of the check in errors.
        process_set: The ranks that take part.
        advice: Text for the last lines.
    """
    root = process_set.ranks[0]
    lines = [f"{label}: variables differ between the ranks. Difference relative to their norm on rank {root}:"]
    for difference in sorted(differences, key=lambda each: each.size, reverse=True)[:_NAMED]:
        ranks = ", ".join(f"rank {rank} {_spelled(value, root)}" for rank, value in difference.relative.items())
        lines.append(f"    {difference.name}, {parts[difference.place].kind()}: {ranks}")
    if len(differences) > _NAMED:
        lines.append(f"    and {len(differences) - _NAMED} more")
    text = "\n".join([*lines, advice])
    return str(broadcast_object(text, root, name=f"{label}: text", process_set=process_set))


def ranks_by_hardware(label: str, process_set: ProcessSet) -> dict[str, list[int]]:
    """The ranks that run on each kind of processor and GPU. All ranks of the set call it."""
    kinds = allgather_object(hardware.kind(), name=f"{label}: hardware", process_set=process_set)
    return {kind: [r for r, other in zip(process_set.ranks, kinds, strict=True) if other == kind] for kind in kinds}


def describe_rounding(differences: Sequence[Difference], label: str, ranks_of: Mapping[str, Sequence[int]]) -> str:
    """Describes differences that may be rounding, with the result of `ranks_by_hardware`."""
    worst = max(differences, key=lambda each: each.size)
    hosts = "; ".join(f"{kind} (rank {', '.join(map(str, members))})" for kind, members in ranks_of.items())
    orders = "operations that add in nondeterministic order (see tf.config.experimental.enable_op_determinism)"
    causes = f"different hardware, {orders}" if len(ranks_of) > 1 else orders
    return (
        f"{label}: {len(differences)} variables differ between the ranks in their last digits, at most by "
        f"{worst.size:.1g} of the norm ({worst.name}). Possible causes: {causes}, or a small update that is not "
        f"reduced. The ranks run on: {hosts}"
    )


def _variables_of_model(model: keras.Model) -> list[Any]:
    equal = {id(variable) for variable in model.trainable_weights}
    for layer in keras_version.layers_of(model):
        equal |= {id(v) for v in (layer.weights if hasattr(layer, "adapt") else keras_version.gradient_weights(layer))}
    weights = [variable for variable in model.weights if id(variable) in equal]
    return without([*weights, *model_optimizer.updated_beside(model)], model_optimizer.state_of_rank(model))


def _need_equal_lists(
    by_rank: Sequence[Any], parts: Sequence[Part], label: str, process_set: ProcessSet, problem: str
) -> None:
    """Raises the errors of `compare` that need no digests."""
    if any(numbers[0] == _REFUSED for numbers in by_rank):
        problems = allgather_object(problem, name=f"{label}: problems", process_set=process_set)
        told = [f"rank {rank}: {text}" for rank, text in zip(process_set.ranks, problems, strict=True) if text]
        raise errors.ConfigError("; ".join(told))
    first = by_rank[0]
    if any(len(numbers) != len(first) or (numbers[1::2] != first[1::2]).any() for numbers in by_rank):
        described = [(part.name, part.kind()) for part in parts]
        lists = allgather_object(described, name=f"{label}: variables", process_set=process_set)
        raise errors.MismatchError(_unequal_lists(lists, process_set.ranks, label))


def _split(numbers: Any) -> Iterator[Any]:
    """Splits the numbers by rank: the number of parts, and two numbers per part."""
    while len(numbers):
        end = 1 + 2 * max(0, int(numbers[0]))
        yield numbers[:end]
        numbers = numbers[end:]


def _unequal_lists(lists: Sequence[Sequence[tuple[str, str]]], ranks: Sequence[int], label: str) -> str:
    first = lists[0]
    lines = [f"{label}: the ranks have different variables."]
    for rank, other in zip(ranks[1:], lists[1:], strict=True):
        if [kind for _, kind in other] == [kind for _, kind in first]:
            continue
        place = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a[1] != b[1]), None)
        place = min(len(first), len(other)) if place is None else place
        here, there = (" ".join(entries[place]) if place < len(entries) else "nothing" for entries in (first, other))
        lines.append(
            f"    rank {ranks[0]} has {len(first)}, rank {rank} has {len(other)}; number {place} is {here} on rank "
            f"{ranks[0]} and {there} on rank {rank}"
        )
    return "\n".join([*lines, "Build the same model on every rank, and pass the same list of variables."])


def _compare_values(
    parts: Sequence[Part], places: Sequence[int], label: str, process_set: ProcessSet
) -> list[Difference]:
    if not places:
        return []
    ranks = process_set.ranks
    mine = np.array([_distance(parts[place], place, label, process_set) for place in places], np.float64)
    table = allgather.allgather(mine[np.newaxis], name=f"{label}: distances", process_set=process_set).numpy()
    found = []
    for index, place in enumerate(places):
        # Equal bits have other digests where one rank has the variable on a GPU and another in memory.
        relative = {rank: float(row[0]) for rank, row in zip(ranks, table[:, index], strict=True) if row[2]}
        if relative:
            found.append(Difference(place, parts[place].name, relative, bool(table[:, index, 1].any())))
    return found


def _distance(part: Part, place: int, label: str, process_set: ProcessSet) -> tuple[float, bool, bool]:
    """Relative difference from the first rank, whether it is more than rounding, and whether any bit differs."""
    root = process_set.ranks[0]
    content = part.read()
    flat = content.reshape(-1) if isinstance(content, np.ndarray) else tf.reshape(content, [-1])
    length = max(1, PIECE_BYTES // tf.as_dtype(content.dtype).size)
    differs, gap, norm, whole = False, 0.0, 0.0, False
    for begin in range(0, int(flat.shape[0]), length):
        mine = np.ascontiguousarray(flat[begin : begin + length])
        bits = mine.view(np.uint8)
        received = broadcast.broadcast(bits, root, name=f"{label}: values {place}", process_set=process_set).numpy()
        theirs = received.view(mine.dtype)
        changed = (bits.reshape(len(mine), -1) != received.reshape(len(mine), -1)).any(axis=1)
        gap += _squares_of_gap(mine[changed], theirs[changed])
        norm += _finite_squares(theirs)
        differs, whole = differs or bool(changed.any()), mine.dtype.kind in "biu"
    if gap == 0.0:
        relative = 0.0
    elif math.isfinite(gap):
        relative = math.sqrt(gap / norm) if norm else math.inf
    else:
        relative = math.nan
    return relative, differs and (whole or not relative <= TOLERANCE), differs


def _squares_of_gap(mine: Any, theirs: Any) -> float:
    """NaN if a number is finite on one side only; two NaNs are equal, whatever their bits."""
    a, b = _wide(mine), _wide(theirs)
    with np.errstate(all="ignore"):
        squares = np.abs(a - b) ** 2
    squares[np.isnan(a) & np.isnan(b)] = 0.0
    total = float(squares.sum())
    return total if math.isfinite(total) else math.nan


def _finite_squares(values: Any) -> float:
    with np.errstate(all="ignore"):
        squares = np.abs(_wide(values)) ** 2
    return float(squares[np.isfinite(squares)].sum())


def _wide(values: Any) -> Any:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _spelled(relative: float, root: int) -> str:
    if math.isnan(relative):
        return "is not finite on one side"
    return f"is nonzero where rank {root} has only zeros" if math.isinf(relative) else f"{relative:.2g}"
