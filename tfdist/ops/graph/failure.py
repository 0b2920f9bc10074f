"""Translates TensorFlow's error, of one op or of a whole graph, into tfdist's. Independent of the collective."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.world import loss, mismatch

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
_OURS = re.compile(r"\{\{node [^}]*\bTfdist\w*\}\}|Every rank must run the same collectives|was compiled by XLA for a")
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


def translated(error: tf.errors.OpError) -> Exception:
    """The tfdist error for an error of a tfdist op that ran eagerly; otherwise the error itself."""
    for kind, ours in _TRANSLATIONS:
        if isinstance(error, kind):
            if "tfdist.init()" in error.message:
                ours = errors.NotInitializedError
            return errors.united(ours)(mismatch.explained(_words(error.message)))
    return error


def explained_error(error: errors.TfdistError) -> errors.TfdistError:
    """The same for an error of a collective that no op of TensorFlow has run."""
    message = str(error)
    kind = errors.NotInitializedError if "tfdist.init()" in message else type(error)
    return kind(mismatch.explained(message))


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
    return loss.of_engine() if isinstance(error, (errors.TfdistError, tf.errors.OpError)) else None


def _words(message: str) -> str:
    return _BEFORE.sub("", _AFTER.sub("", message), count=1)
