"""The exceptions of tfdist: one family, so that `except TfdistError` catches whatever goes wrong here.

Where TensorFlow is imported, both `except tfdist.MismatchError` and `except tf.errors.FailedPreconditionError` catch a
mismatch, and alike; nothing here imports it.
"""

from __future__ import annotations

import sys
from typing import Any

_MESSAGE_ONLY: Any = object()


class TfdistError(Exception):
    """Whatever goes wrong in tfdist."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        is_united = cls in _EVERYWHERE and hasattr(sys.modules.get("tensorflow"), "errors")
        return super().__new__(united(cls) if is_united else cls, *args, **kwargs)


class NotInitializedError(TfdistError, ValueError):
    """A name was used that needs `tfdist.init()` first."""


class ConfigError(TfdistError, ValueError):
    """An argument, option or environment variable has a value that cannot be honoured."""


class MismatchError(TfdistError, ValueError):
    """The ranks called different collectives, or the same one with different tensors.

    Every rank gets the same message. `except tf.errors.FailedPreconditionError` catches it too; out of a `tf.function`
    of your own, one that `fit` does not call, it arrives as that class alone.
    """


class PeerLostError(TfdistError, RuntimeError):
    """Another process of the job died or cannot be reached. `except tf.errors.UnavailableError` catches it too."""


class RankError(TfdistError, RuntimeError):
    """A function that `tfdist.run` or `tfdist.testing.run_ranks` called on ranks failed on one, or was ended.

    Where `tfdist.run` raises the exception of the function itself, this is its `__cause__`.

    Attributes:
        rank: The rank that failed first; None if no rank told.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class StallError(TfdistError, TimeoutError):
    """A wait for the other ranks outlasted `TFDIST_STALL_CHECK_SHUTDOWN_TIME`.

    `except tf.errors.DeadlineExceededError` catches it too.
    """


class BuildError(TfdistError, ImportError):
    """The shared library is missing or was built for another TensorFlow or MPI than the one installed."""


_united: dict[type[TfdistError], Any] = {}
# Raised in place of tfdist's class wherever that is raised.
_EVERYWHERE = {
    MismatchError: "FailedPreconditionError",
    PeerLostError: "UnavailableError",
    StallError: "DeadlineExceededError",
}
# Raised only where an op has failed: these are raised for many reasons that TensorFlow has no class for.
_OF_OPS = {
    ConfigError: "InvalidArgumentError",
    NotInitializedError: "FailedPreconditionError",
}


def united(kind: type[TfdistError]) -> Any:
    """The subclass of `kind` and of TensorFlow's class of the same kind, where TensorFlow is imported."""
    if kind not in _united:
        _united[kind] = _with_tensorflow(kind)
    return _united[kind]


def _with_tensorflow(kind: type[TfdistError]) -> Any:
    theirs: Any = getattr(sys.modules["tensorflow"].errors, (_EVERYWHERE | _OF_OPS)[kind])

    class United(kind, theirs):  # type: ignore[misc, valid-type]
        # The names of the arguments are those by which AutoGraph makes an error of TensorFlow again.
        def __init__(self, node_def: Any, op: Any = _MESSAGE_ONLY, message: Any = None, *args: Any) -> None:
            if op is _MESSAGE_ONLY:
                node_def, op, message = None, None, node_def
            theirs.__init__(self, node_def, op, message, *[payloads for payloads in args if isinstance(payloads, dict)])
            self.args = (message,)

        def __str__(self) -> str:
            return str(self.message)

        def __reduce__(self) -> tuple[Any, ...]:
            return kind, self.args

    # What a traceback shows.
    United.__module__, United.__name__, United.__qualname__ = kind.__module__, kind.__name__, kind.__qualname__
    United.__doc__ = kind.__doc__
    return United
