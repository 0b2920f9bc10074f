"""Translates TensorFlow's error, of one op or of a whole graph, into tfdist's. Independent of the collective."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.native import library
from tfdist.world import runtime

# What the collective at the end of a training epoch is called by; the number of the epoch comes next.
END_OF_EPOCH = "the end of epoch"

_TRANSLATIONS: tuple[tuple[type[tf.errors.OpError], type[errors.TfdistError]], ...] = (
    (tf.errors.FailedPreconditionError, errors.MismatchError),
    (tf.errors.UnavailableError, errors.PeerLostError),
    (tf.errors.DeadlineExceededError, errors.StallError),
    (tf.errors.InvalidArgumentError, errors.ConfigError),
)
# What TensorFlow puts around a kernel's message; it names the op, so it differs where ranks called different ones.
_BEFORE = re.compile(
    r"\A(?:Graph execution error:\s.*\n\n)?(?:\s*\d+ root error\(s\) found\.\s*\(0\) [\w ]+:\s+)?"
    r"(?:\{\{[^}]*\}\}\s*)*",
    re.DOTALL,
)
_AFTER = re.compile(r"\n\s*\[\[\{\{.*|\s*\[Op:\w+\].*", re.DOTALL)
# In the error of a graph: a node of ours failed. XLA names none, so the words of the engine have to do.
_OURS = re.compile(r"\{\{node [^}]*\bTfdist\w*\}\}|Every rank must run the same collectives")
# Classes in which an error of ours may arrive from XLA; a step's own mistakes, and the end of its data, have others.
_MAY_BE_OURS = (
    tf.errors.FailedPreconditionError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
_STEP = "the ranks are out of step: "
_DEED = re.compile(
    r"(ranks? [\d, -]*\d) (?:called ([\w ]+?)(?: '(.*?)')?|(ha(?:s|ve) finished)[^,.]*)(?=, rank|\. |\.$| and \d)"
)
_END = re.compile(re.escape(END_OF_EPOCH) + r" (\d+)(?: (after \d+ batch(?:es)?))?")
EQUAL_BATCHES = (
    "Give all ranks the same number of batches: dataset = tfdist.shard(dataset) returns complete rounds, also from a "
    "generator's data (tf.data.Dataset.from_generator). Or let some ranks have one batch more with "
    'tfdist.shard(dataset, remainder="join"), if fit trains on what it returns or a tf.data pipeline built on that '
    "(not on a generator, saved data or arrays made from it). Or pass steps_per_epoch to fit."
)
_EQUAL_STOPS = "A callback that sets stop_training must do so on every rank."
_EQUAL_EPOCHS = (
    "Start all ranks at the same epoch: pass the same initial_epoch to fit, and resume with "
    "tfdist.callbacks.BackupAndRestore on every rank."
)


def translated(error: tf.errors.OpError) -> Exception:
    """The tfdist error for an error of a tfdist op that ran eagerly; otherwise the error itself."""
    for kind, ours in _TRANSLATIONS:
        if isinstance(error, kind):
            if "tfdist.init()" in error.message:
                ours = errors.NotInitializedError
            return errors.united(ours)(explained(_words(error.message)))
    return error


def explained_error(error: errors.TfdistError) -> errors.TfdistError:
    """The same for an error of a collective that no op of TensorFlow has run."""
    message = str(error)
    kind = errors.NotInitializedError if "tfdist.init()" in message else type(error)
    return kind(explained(message))


def translated_from_graph(error: Exception) -> Exception:
    """The same for an error from a `tf.function`; an error that is not tfdist's is returned unchanged."""
    if not isinstance(error, tf.errors.OpError) or isinstance(error, errors.TfdistError):
        return error
    is_ours = _OURS.search(error.message) is not None
    trouble = trouble_behind(error) if is_ours or isinstance(error, _MAY_BE_OURS) else None
    if trouble is not None:
        return trouble
    return translated(error) if is_ours else error


def translating(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a `tf.function`.

    Raises:
        TfdistError: If a collective inside failed.
    """
    try:
        return function(*args)
    except tf.errors.OpError as error:
        better = translated_from_graph(error)
        if better is error:
            raise
        raise better from None


def trouble_behind(error: BaseException) -> errors.TfdistError | None:
    """The loss or stall of a rank that made an operation fail with `error`; None if it has another cause.

    In a compiled step the error of a collective can have any class, so the engine is asked.
    """
    if not isinstance(error, (errors.TfdistError, tf.errors.OpError)) or not runtime.is_initialized():
        return None
    try:
        library.call("tfdist_check")
    except (errors.PeerLostError, errors.StallError) as trouble:
        return trouble
    except errors.TfdistError:
        return None
    return None


def explained(message: str) -> str:
    """The message of a mismatch, explained for training in which one rank has reached the end of its epoch."""
    if f"'{END_OF_EPOCH} " not in message or not message.startswith(_STEP):
        return message
    deeds = [(ranks, done, name or "", finished) for ranks, done, name, finished in _DEED.findall(message)]
    ended, others = [], []
    for ranks, done, name, finished in deeds:
        plural = ranks.startswith("ranks")
        end = _END.fullmatch(name)
        if end is not None:
            after = f" {end[2]}" if end[2] else ""
            ended.append(f"{ranks} {'have' if plural else 'has'} ended epoch {end[1]}{after}")
        elif finished:
            others.append(f"{ranks} {'have' if plural else 'has'} finished training")
        elif name == "loss" or name.startswith("gradients"):
            others.append(f"{ranks} {'are' if plural else 'is'} still training ({done} '{name}')")
        else:
            others.append(f"{ranks} called {done} '{name}'")
    advice = f"{EQUAL_BATCHES} {_EQUAL_STOPS}" if others else _EQUAL_EPOCHS
    return f"{_STEP}{', '.join([*ended, *others])}. {advice}"


def _words(message: str) -> str:
    return _BEFORE.sub("", _AFTER.sub("", message), count=1)
