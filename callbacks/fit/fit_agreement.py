"""What the ranks must agree on when `fit` begins, compared before the first step. Not a callback."""

from __future__ import annotations

import dis
import logging
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import data_digest, training_data
from tfdist.native import keras_version
from tfdist.ops import COLLECTIVES
from tfdist.ops.reduction import Average
from tfdist.training import optimizer
from tfdist.world import mismatch
from tfdist.world.process_sets import global_process_set
from tfdist.world.session import session

# In the code of a callback: it runs collectives, or all ranks must do as it does.
_COLLECTIVES = COLLECTIVES | {"check_equal"}
_DECISIONS = frozenset(("stop_training", "learning_rate"))
# What differs, and what to write.
_ADVICE = {
    "initial_epoch": (
        "Start all ranks at the same epoch: resume them together with tfdist.callbacks.BackupAndRestore, or pass "
        "initial_epoch=tfdist.broadcast_object(initial_epoch)."
    ),
    "epochs": "Pass the same epochs to fit on every rank.",
    "what tfdist.shard did with the remainder": "Train on what tfdist.shard returned, on every rank.",
    "the global batch of tfdist.shard": "Train on what tfdist.shard returned, on every rank.",
    "the number of steps of an epoch": mismatch.EQUAL_BATCHES,
    "steps_per_execution": "Compile the model with the same steps_per_execution on every rank.",
    "validation_data": (
        'Give every rank its shard: validation_data=tfdist.shard(validation_data, remainder="join"). Or validate on '
        "rank 0 only, with model.evaluate in a callback inside tfdist.callbacks.RankZero."
    ),
    "validation_freq": "Pass the same validation_freq to fit on every rank.",
    "the list of callbacks that run collectives": "Pass the same callbacks in the same order to fit on every rank.",
    "the list of callbacks that end training or set the learning rate": (
        "Pass them to fit on every rank: they see the same logs there, so they decide alike. Only callbacks that "
        "write or print may run on rank 0 alone."
    ),
}


# Class attributes of callbacks of ours: it runs collectives in each `fit`, and calls `agree` in `on_train_begin`; ranks
# may have it differently, since it acts on one only, or compares by itself.
_AGREES, _LEFT_OUT = "_agrees_on_fit", "_differs_by_rank"
# Callbacks of Keras that write, the attribute with the place, and what to write instead.
_ON_RANK_ZERO = "tfdist.callbacks.RankZero({name}(...))"
_WRITERS = {
    "ModelCheckpoint": ("filepath", "tfdist.callbacks.ModelCheckpoint(...)"),
    "BackupAndRestore": ("backup_dir", "tfdist.callbacks.BackupAndRestore(...)"),
    "CSVLogger": ("filename", _ON_RANK_ZERO),
    "TensorBoard": ("log_dir", _ON_RANK_ZERO),
}
_FILES = "the files that callbacks of Keras write"
_ARRAYS = "the arrays that fit got"
_LEFT_OUT_OF_VALIDATION = (
    "the metrics of validation leave out samples: tfdist.shard has dropped what does not fill a round of full batches. "
    'For all samples use validation_data=tfdist.shard(..., remainder="join"), or the whole data on every rank.'
)
_IN_STORED_ORDER = (
    "the rows of the arrays in tfdist.shard(..., global_batch=%d) are taken in their stored order in every epoch. To "
    "shuffle them, as fit does with arrays, shard tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1) "
    "instead of (x, y); if they shall stay in order, pass shuffle=False to fit."
)
_OF_SUMS = (
    "%s has reduction='sum', and the gradients of the ranks are averaged: a step is that of the sum over the global "
    "batch divided by %d. Take the mean instead, or see docs/batches.md."
)
_logger = logging.getLogger("tfdist")


def agree(callback: keras.callbacks.Callback) -> None:
    """Compares the settings of the `fit` that begins over all ranks, once for all callbacks of its list.

    Every tfdist callback that runs collectives calls it first in `on_train_begin`.

    Args:
        callback: The calling callback.

    Raises:
        MismatchError: On every rank, if anything differs; names what, on which ranks, and the remedy.

    Rank 0 warns of files that several ranks write, and of arrays that all have as a whole.
    """
    model: Any = callback.model
    params: Any = callback.params
    callbacks = keras_version.callbacks_of_fit(callback)
    ours = [each for each in callbacks if getattr(each, _AGREES, False)]
    group = global_process_set
    if optimizer.is_distributed(model.optimizer):
        group = optimizer.reduction_of(model.optimizer).process_set
    if session.catches_up or not ours or ours[0] is not callback or not group.included() or group.size() == 1:
        return
    mine = _knowledge(model, params, callbacks, keras_version.arguments_of_fit(model))
    by_rank = tfdist.allgather_object(mine, name=mismatch.START_OF_FIT, process_set=group)
    known = dict(zip(group.ranks, by_rank, strict=True))
    if problem := difference(known):
        raise errors.MismatchError(problem)
    if group.rank() == 0:
        _warn(known)
        _warn_of_numbers(model)


def _warn(known: Mapping[int, Mapping[str, Any]]) -> None:
    lines = written_together({rank: each[_FILES] for rank, each in known.items()})
    arrays = {each[_ARRAYS] for each in known.values()}
    if len(arrays) == 1 and None not in arrays:
        lines.append(data_digest.complaint(len(known), sharded=False))
    for line in lines:
        _logger.warning("%s", line)


def _warn_of_numbers(model: keras.Model) -> None:
    """What is trained or reported differs from what one process on the whole data would train or report."""
    if training_data.validation_leaves_out(model):
        _logger.warning("%s", _LEFT_OUT_OF_VALIDATION)
    for part in training_data.in_stored_order(model):
        _logger.warning(_IN_STORED_ORDER, part.global_batch)
        part.untold_order = False
    if optimizer.is_distributed(model.optimizer) and optimizer.reduction_of(model.optimizer).op is Average:
        for loss, reduction in training_data.losses_without_mean(model):
            if reduction == "sum":
                _logger.warning(_OF_SUMS, loss, optimizer.reduction_of(model.optimizer).process_set.size())


def difference(by_rank: Mapping[int, Mapping[str, Any]]) -> str:
    """How the settings differ between ranks, and the remedy; empty if they are equal.

    Args:
        by_rank: The settings of each rank by name; None is unknown.
    """
    problems = []
    for name, advice in _ADVICE.items():
        groups: dict[Any, list[int]] = {}
        for rank, known in by_rank.items():
            if known[name] is not None:
                groups.setdefault(known[name], []).append(rank)
        if len(groups) > 1:
            values = "; ".join(f"{_shown(value)} on {_named(ranks)}" for value, ranks in groups.items())
            problems.append(f"{name} is {values}. {advice}")
    return f"fit was called differently on the ranks: {' Also, '.join(problems)}" if problems else ""


def written_together(by_rank: Mapping[int, Sequence[tuple[str, str]]]) -> list[str]:
    """A line for each file that several ranks write, with the remedy.

    Args:
        by_rank: Of each rank, the names of Keras' callbacks and where they write.
    """
    writers: dict[tuple[str, str], list[int]] = {}
    for rank, files in by_rank.items():
        for file in dict.fromkeys(files):
            writers.setdefault(file, []).append(rank)
    return [
        f"keras.callbacks.{name} writes {path} on {_named(ranks)}, at the same time. Let one rank write: "
        + _WRITERS[name][1].format(name=name)
        for (name, path), ranks in writers.items()
        if len(ranks) > 1
    ]


def _files(callbacks: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """The callbacks of Keras that write, and where."""
    found = []
    for each in callbacks:
        for name, (attribute, _) in _WRITERS.items():
            if isinstance(each, getattr(keras.callbacks, name)) and not _is_ours(each):
                path = os.fspath(getattr(each, attribute))
                found.append((name, path if "://" in path else os.path.abspath(path)))
    return tuple(found)


def _knowledge(
    model: keras.Model, params: Mapping[str, Any], callbacks: Sequence[Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings by the names of `_ADVICE`, all comparable and hashable, and the files."""
    remainders = training_data.remainders(model)
    validates = None
    if arguments:
        validates = arguments["validation_data"] is not None or bool(arguments["validation_split"])
    frequency = arguments.get("validation_freq") if validates else None
    acting = [each for each in callbacks if _kind(each)]
    return {
        _FILES: _files(callbacks),
        _ARRAYS: training_data.outline_of_arrays(model),
        "initial_epoch": arguments.get("initial_epoch"),
        "epochs": params.get("epochs"),
        "what tfdist.shard did with the remainder": tuple(sorted(remainders)),
        "the global batch of tfdist.shard": training_data.global_batch(model) or "none",
        "the number of steps of an epoch": None if "join" in remainders else params.get("steps"),
        "steps_per_execution": getattr(model, "steps_per_execution", None),
        "validation_data": {None: None, True: "given", False: "not given"}[validates],
        "validation_freq": tuple(frequency) if isinstance(frequency, (list, tuple)) else frequency,
        "the list of callbacks that run collectives": tuple(
            _kind(each) for each in acting if _is_ours(each) or _names_in(each) & _COLLECTIVES
        ),
        "the list of callbacks that end training or set the learning rate": tuple(
            sorted(_kind(each) for each in acting if not _is_ours(each) and _stores_in(each) & _DECISIONS)
        ),
    }


def _kind(callback: Any) -> str:
    """The class of a callback, with those of the callbacks inside; empty if it is ignored."""
    if getattr(callback, _LEFT_OUT, False):
        return ""
    inside = [_kind(part) for part in vars(callback).values() if isinstance(part, keras.callbacks.Callback)]
    return type(callback).__name__ + (f"({', '.join(filter(None, inside))})" if any(inside) else "")


def _is_ours(callback: Any) -> bool:
    return any(kind.__module__.startswith("tfdist.callbacks") for kind in type(callback).__mro__)


def _names_in(callback: Any) -> set[str]:
    """The functions and attributes that the code of a callback names."""
    return {name for code in _codes(callback) for name in code.co_names}


def _stores_in(callback: Any) -> set[str]:
    """The attributes that the code of a callback sets."""
    instructions = (instruction for code in _codes(callback) for instruction in dis.get_instructions(code))
    return {str(each.argval) for each in instructions if each.opname == "STORE_ATTR"}


def _codes(callback: Any) -> Iterator[types.CodeType]:
    """The code of a callback's methods, and of functions passed to it, without what all callbacks inherit."""
    plain = keras.callbacks.Callback.__mro__
    members = [value for kind in type(callback).__mro__ if kind not in plain for value in vars(kind).values()]
    for member in [*members, *vars(callback).values()]:
        function = getattr(member, "__func__", member)
        function = getattr(function, "fget", function) or function
        if isinstance(function, types.FunctionType):
            while isinstance(inner := getattr(function, "__wrapped__", None), types.FunctionType):
                function = inner
            yield from _with_inner(function.__code__)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _shown(value: Any) -> str:
    return (", ".join(map(str, value)) or "empty") if isinstance(value, tuple) else str(value)


def _named(ranks: Sequence[int]) -> str:
    """As in "rank 3" or "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {text}"
