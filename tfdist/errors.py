"""The exceptions of tfdist, in one family: `except TfdistError` catches them all.

If TensorFlow is imported, a mismatch is caught both by `except tfdist.MismatchError` and by
`except tf.errors.FailedPreconditionError`; the other classes work the same way. This module does not import TensorFlow.
"""

from __future__ import annotations

import sys
from typing import Any

_MESSAGE_ONLY: Any = object()


class TfdistError(Exception):
    """Base class of all tfdist errors."""

    # AutoGraph raises an error of a function's code again with its class if that has this initializer, else as its own.
    __init__ = Exception.__init__

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        is_united = cls in _EVERYWHERE and hasattr(sys.modules.get("tensorflow"), "errors")
        return super().__new__(united(cls) if is_united else cls, *args, **kwargs)


class NotInitializedError(TfdistError, ValueError):
    """Something was used that requires `tfdist.init()` first."""


class ConfigError(TfdistError, ValueError):
    """An argument, option or environment variable has a value that cannot be used."""


class UnsupportedError(ConfigError, NotImplementedError):
    """There is no way to do this with values of that kind; Horovod raises `NotImplementedError`."""


class MismatchError(TfdistError, ValueError):
    """The ranks called different collectives, or the same one with different tensors.

    Every rank gets the same message. `except tf.errors.FailedPreconditionError` catches it too. From a `tf.function` of
    your own that `fit` does not call, it is raised as that TensorFlow class only.
    """


class HorovodInternalError(TfdistError):
    """A collective failed because of other ranks; Horovod's name, so that a script that catches it does so here.

    Never raised itself: its subclasses say what happened.
    """


class HostsUpdatedInterrupt(TfdistError, RuntimeError):
    """Raised at a commit where ranks join the job; `tfdist.elastic.run` catches it and continues.

    Attributes:
        skip_sync: False, as in Horovod where ranks have been added: all ranks get the same state before they continue.
    """

    skip_sync = False


class PeerLostError(HorovodInternalError, RuntimeError):
    """Another process of the job died or cannot be reached. `except tf.errors.UnavailableError` catches it too."""


class StoreError(TfdistError, OSError):
    """An object store cannot be reached, read or written; the message says what to do."""


class RankError(TfdistError, RuntimeError):
    """A function called by `tfdist.run` or `tfdist.testing.run_ranks` failed on a rank, or was terminated.

    If `tfdist.run` re-raises the function's own exception, this is its `__cause__`.

    Attributes:
        rank: The rank that failed first; None if no rank reported it.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class StallError(HorovodInternalError, TimeoutError):
    """Waiting for the other ranks took longer than `TFDIST_STALL_CHECK_SHUTDOWN_TIME`.

    `except tf.errors.DeadlineExceededError` catches it too.
    """


class BuildError(TfdistError, ImportError):
    """A shared library is missing, or there is none for the TensorFlow or MPI that is installed."""


_united: dict[type[TfdistError], Any] = {}
# Raised instead of tfdist's own class, wherever that would be raised.
_EVERYWHERE = {
    MismatchError: "FailedPreconditionError",
    PeerLostError: "UnavailableError",
    StallError: "DeadlineExceededError",
}
# Raised only if an op failed; elsewhere these have many causes for which TensorFlow has no class.
_OF_OPS = {
    ConfigError: "InvalidArgumentError",
    NotInitializedError: "FailedPreconditionError",
}


def united(kind: type[TfdistError]) -> Any:
    """A subclass of both `kind` and TensorFlow's matching class. TensorFlow must be imported."""
    if kind not in _united:
        _united[kind] = _with_tensorflow(kind)
    return _united[kind]


def _with_tensorflow(kind: type[TfdistError]) -> Any:
    theirs: Any = getattr(sys.modules["tensorflow"].errors, (_EVERYWHERE | _OF_OPS)[kind])

    class United(kind, theirs):  # type: ignore[misc, valid-type]
        # AutoGraph uses these argument names to re-create a TensorFlow error.
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
