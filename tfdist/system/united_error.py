"""Exceptions that both `except tfdist.MismatchError` and `except tf.errors.FailedPreconditionError` catch, and alike.

The classes are made when TensorFlow is there, whichever is imported first; nothing here imports it.
"""

from __future__ import annotations

import sys
from typing import Any

from tfdist import errors

# Raised in place of tfdist's class wherever that is raised.
_EVERYWHERE = {
    errors.MismatchError: "FailedPreconditionError",
    errors.PeerLostError: "UnavailableError",
    errors.StallError: "DeadlineExceededError",
}
# Raised only where an op has failed: these are raised for many reasons that TensorFlow has no class for.
_OF_OPS = {
    errors.ConfigError: "InvalidArgumentError",
    errors.NotInitializedError: "FailedPreconditionError",
}
_MESSAGE_ONLY: Any = object()
_made: dict[type, type[errors.TfdistError]] = {}


def install() -> None:
    """From now on the classes of tfdist are made with TensorFlow's; for use once TensorFlow is imported."""
    errors.unite({kind: united(kind) for kind in _EVERYWHERE})


def united(kind: type[errors.TfdistError]) -> type[errors.TfdistError]:
    """The subclass of `kind` and of TensorFlow's class of the same kind."""
    if kind not in _made:
        _made[kind] = _make(kind)
    return _made[kind]


def _make(kind: type[errors.TfdistError]) -> type[errors.TfdistError]:
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
