"""How Python objects travel between ranks: pickled, by collectives of arrays, whichever framework runs those."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist import errors
from tfdist.system import pickler
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet

_Array = np.ndarray[Any, Any]
_Dumps = Callable[[Any], bytes]


class ObjectExchange:
    """The exchange of one object of each rank, or of one rank.

    Args:
        label: By which collectives and errors name it; same on every rank.
        process_set: The ranks that take part.
        allgather: Of an array and a name: the rows of all ranks.
        broadcast: Of an array, the rank whose array is wanted, and a name.
    """

    def __init__(
        self,
        label: str,
        process_set: ProcessSet,
        allgather: Callable[[_Array, str], _Array],
        broadcast: Callable[[_Array, int, str], _Array],
    ) -> None:
        self._label, self._process_set = label, process_set
        self._allgather, self._broadcast = allgather, broadcast

    def from_one(self, obj: Any, root_rank: int) -> Any:
        """The object of rank `root_rank`.

        Raises:
            ConfigError: On every rank, if it cannot be pickled on its rank or unpickled on another.
        """
        # Alone, a process that has yet to join others has the number of a rank to come.
        is_root = runtime.rank() == root_rank or runtime.size() == 1

        def attempt(dumps: _Dumps) -> tuple[list[Any], str]:
            data, sign = _pickled(obj, dumps) if is_root else (np.zeros(0, np.uint8), 1)
            count = np.asarray(sign * data.size, np.int64)
            length = int(self._broadcast(count, root_rank, f"{self._label}/bytes"))
            if not is_root:
                data = np.zeros(abs(length), np.uint8)
            return self._loaded([self._broadcast(data, root_rank, self._label)], [length], [root_rank])

        return _first_that_loads(attempt)[0]

    def from_all(self, obj: Any) -> list[Any]:
        """The objects of all ranks that have not joined.

        Raises:
            ConfigError: As `from_one`.
        """

        def attempt(dumps: _Dumps) -> tuple[list[Any], str]:
            lengths, parts = self._gathered(*_pickled(obj, dumps), self._label)
            return self._loaded(parts, lengths, self._givers(lengths))

        return _first_that_loads(attempt)

    def _loaded(
        self, parts: Sequence[_Array], lengths: Sequence[int], ranks: Sequence[int | str]
    ) -> tuple[list[Any], str]:
        """The objects of these ranks, and what failed, the same on every rank.

        Raises:
            ConfigError: On every rank, if one was not pickled.
        """
        for part, length, rank in zip(parts, lengths, ranks, strict=True):
            if length < 0:
                raise errors.ConfigError(
                    f"{self._label!r}: the object of rank {rank} cannot be pickled there: {part.tobytes().decode()}. "
                    "Send plain data (numbers, text, arrays, paths) instead; locks, generators, files and datasets "
                    "cannot be sent."
                )
        objects, problem = [], np.zeros(0, np.uint8)
        for part, rank in zip(parts, ranks, strict=True):
            try:
                # The bytes come from a rank of the same job over MPI, which is not authenticated: it needs a private
                # network.
                objects.append(pickle.loads(part.tobytes()))  # noqa: S301
            except Exception as error:  # noqa: BLE001  (whatever its own code raises; all ranks raise it)
                problem = _text_of(error, f"the object of rank {rank}: ")
                break
        if not any(self._lengths_of_all(problem, 1, f"{self._label}/problems")):
            return objects, ""
        _, problems = self._gathered(problem, 1, f"{self._label}/problem")
        text = "; ".join(
            f"on rank {rank} ({problem.tobytes().decode()})"
            for rank, problem in zip(self._givers(problems), problems, strict=True)
            if problem.size
        )
        remedy = "Every rank must be able to import the modules that define it."
        return [], f"{self._label!r} cannot be unpickled {text}. {remedy}"

    def _givers(self, given: Sequence[Any]) -> Sequence[int | str]:
        """The rank of each object. Ranks that have joined send nothing, and which they are is unknown."""
        ranks = self._process_set.ranks
        return ranks if len(given) == len(ranks) else ["?"] * len(given)

    def _gathered(self, data: _Array, sign: int, label: str) -> tuple[list[int], list[_Array]]:
        """The bytes of all ranks, and their lengths times the sign of each rank."""
        lengths = self._lengths_of_all(data, sign, f"{label}/bytes")
        return lengths, np.split(self._allgather(data, label), np.cumsum(np.abs(lengths))[:-1])

    def _lengths_of_all(self, data: _Array, sign: int, label: str) -> list[int]:
        return [int(length) for length in self._allgather(np.asarray([sign * data.size], np.int64), label)]


def _first_that_loads(attempt: Callable[[_Dumps], tuple[list[Any], str]]) -> list[Any]:
    """Pickling by name keeps a class of the script identical on the other rank; pickling by code works if it does not
    exist there.
    """
    for dumps in (pickler.dumps_by_name, pickler.dumps):
        objects, problem = attempt(dumps)
        if not problem:
            return objects
    raise errors.ConfigError(problem)


def _pickled(obj: Any, dumps: _Dumps) -> tuple[_Array, int]:
    """The pickled object and 1, or the error and -1: a negative length marks a failure."""
    try:
        return np.frombuffer(dumps(obj), np.uint8), 1
    except Exception as error:  # noqa: BLE001  (whatever its own code raises; all ranks raise it)
        return _text_of(error), -1


def _text_of(error: Exception, subject: str = "") -> _Array:
    return np.frombuffer(f"{subject}{type(error).__name__}: {error}".encode(), np.uint8)
