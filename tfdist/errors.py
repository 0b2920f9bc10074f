"""The exceptions of tfdist: one family, so that `except TfdistError` catches whatever goes wrong here."""

from __future__ import annotations

from typing import Any

# For each class its subclass that TensorFlow's class of the same kind catches too; empty until TensorFlow is imported.
_united: dict[type, type] = {}


class TfdistError(Exception):
    """Whatever goes wrong in tfdist."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(_united.get(cls, cls), *args, **kwargs)


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


def unite(classes: dict[type[TfdistError], type]) -> None:
    """Makes these subclasses the ones that are raised in place of their classes.

    Args:
        classes: Subclass by class.
    """
    _united.update(classes)
