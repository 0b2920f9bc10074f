"""The exceptions of tfdist: one family, so that `except TfdistError` catches whatever goes wrong here."""

from __future__ import annotations


class TfdistError(Exception):
    """Whatever goes wrong in tfdist."""


class NotInitializedError(TfdistError, ValueError):
    """A name was used that needs `tfdist.init()` first."""


class ConfigError(TfdistError, ValueError):
    """An argument, option or environment variable has a value that cannot be honoured."""


class MismatchError(TfdistError, ValueError):
    """The ranks called different collectives, or the same one with different tensors.

    Every rank gets the same message. In a `tf.function` it arrives as `tf.errors.FailedPreconditionError`.
    """


class PeerLostError(TfdistError, RuntimeError):
    """Another process of the job died or cannot be reached."""


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
    """A wait for the other ranks outlasted `TFDIST_STALL_CHECK_SHUTDOWN_TIME`."""


class BuildError(TfdistError, ImportError):
    """The shared library is missing or was built for another TensorFlow or MPI than the one installed."""
