"""Collectives of Python objects, for small data such as a configuration or a log."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import errors
from tfdist.ops import allgather, broadcast
from tfdist.ops.graph import session_graph
from tfdist.system import pickler
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set

_Dumps = Callable[[Any], bytes]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of rank `root_rank` on every rank.

    Args:
        obj: Anything that cloudpickle can pickle, including lambdas and local classes; ignored on all ranks but the
            root.
        root_rank: The rank whose object is wanted, by its number among all ranks.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    In a graph that a session runs it adds nothing to the graph: the object travels at once.

    Raises:
        ConfigError: Inside a `tf.function`, compiled by XLA or not. On every rank, if an object cannot be pickled on
            its rank or unpickled on another.

    Example:

    ```python
    settings = tfdist.broadcast_object(settings, root_rank=0, name="settings")
    ```
    """
    label = name or "broadcast_object"
    is_root = runtime.rank() == root_rank

    def attempt(dumps: _Dumps) -> tuple[list[Any], str]:
        data, sign = _pickled(obj, dumps) if is_root else (np.zeros(0, np.uint8), 1)
        count = tf.constant(sign * data.size, tf.int64)
        length = int(broadcast.broadcast(count, root_rank, name=f"{label}/bytes", process_set=process_set))
        if not is_root:
            data = np.zeros(abs(length), np.uint8)
        received = broadcast.broadcast(data, root_rank, name=label, process_set=process_set).numpy()
        return _loaded([received], [length], [root_rank], label, process_set)

    with _at_once("broadcast_object", label):
        return _first_that_loads(attempt)[0]


def broadcast_object_fn(
    root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns a function of one object that broadcasts it.

    Args:
        root_rank: As in `broadcast_object`.
        name: As in `broadcast_object`.
        process_set: As in `broadcast_object`.

    Example:

    ```python
    from_first = tfdist.broadcast_object_fn(root_rank=0)
    settings = from_first(settings)
    ```
    """
    return functools.partial(broadcast_object, root_rank=root_rank, name=name, process_set=process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks.

    Args:
        obj: Anything that cloudpickle can pickle, including lambdas and local classes; may differ by rank.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    In a graph that a session runs it adds nothing to the graph: the object travels at once.

    Raises:
        ConfigError: Inside a `tf.function`, compiled by XLA or not. On every rank, if an object cannot be pickled on
            its rank or unpickled on another.

    Example:

    ```python
    hosts = tfdist.allgather_object(socket.gethostname(), name="hosts")
    ```
    """
    label = name or "allgather_object"

    def attempt(dumps: _Dumps) -> tuple[list[Any], str]:
        lengths, parts = _gathered(*_pickled(obj, dumps), label, process_set)
        return _loaded(parts, lengths, _givers(lengths, process_set), label, process_set)

    with _at_once("allgather_object", label):
        return _first_that_loads(attempt)


@contextlib.contextmanager
def _at_once(function: str, label: str) -> Iterator[None]:
    with session_graph.left():
        if not tf.executing_eagerly():
            raise errors.ConfigError(
                f"{function} {label!r} ran inside a tf.function, whose graph holds only tensors. Call it outside the "
                "function, with or without jit_compile=True, and pass tensors in."
            )
        yield


def _first_that_loads(attempt: Callable[[_Dumps], tuple[list[Any], str]]) -> list[Any]:
    """Pickling by name keeps a class of the script identical on the other rank; pickling by code works if it does not
    exist there.
    """
    for dumps in (pickler.dumps_by_name, pickler.dumps):
        objects, problem = attempt(dumps)
        if not problem:
            return objects
    raise errors.ConfigError(problem)


def _pickled(obj: Any, dumps: _Dumps) -> tuple[np.ndarray[Any, Any], int]:
    """The pickled object and 1, or the error and -1: a negative length marks a failure."""
    try:
        return np.frombuffer(dumps(obj), np.uint8), 1
    except Exception as error:  # noqa: BLE001  (whatever its own code raises; all ranks raise it)
        return _text_of(error), -1


def _loaded(
    parts: Sequence[np.ndarray[Any, Any]],
    lengths: Sequence[int],
    ranks: Sequence[int | str],
    label: str,
    process_set: ProcessSet,
) -> tuple[list[Any], str]:
    """The objects of these ranks, and what failed, the same on every rank.

    Raises:
        ConfigError: On every rank, if one was not pickled.
    """
    for part, length, rank in zip(parts, lengths, ranks, strict=True):
        if length < 0:
            raise errors.ConfigError(
                f"{label!r}: the object of rank {rank} cannot be pickled there: {part.tobytes().decode()}. Send "
                "plain data (numbers, text, arrays, paths) instead; locks, generators, files and datasets cannot be "
                "sent."
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
    lengths_of_problems = _lengths_of_all(problem, 1, f"{label}/problems", process_set)
    if not any(lengths_of_problems):
        return objects, ""
    _, problems = _gathered(problem, 1, f"{label}/problem", process_set)
    text = "; ".join(
        f"on rank {rank} ({problem.tobytes().decode()})"
        for rank, problem in zip(_givers(problems, process_set), problems, strict=True)
        if problem.size
    )
    return [], f"{label!r} cannot be unpickled {text}. Every rank must be able to import the modules that define it."


def _givers(given: Sequence[Any], process_set: ProcessSet) -> Sequence[int | str]:
    """The rank of each object. Ranks that have joined send nothing, and which they are is unknown."""
    return process_set.ranks if len(given) == len(process_set.ranks) else ["?"] * len(given)


def _gathered(
    data: np.ndarray[Any, Any], sign: int, label: str, process_set: ProcessSet
) -> tuple[list[int], list[np.ndarray[Any, Any]]]:
    """The bytes of all ranks, and their lengths times the sign of each rank."""
    lengths = _lengths_of_all(data, sign, f"{label}/bytes", process_set)
    everything = allgather.allgather(data, name=label, process_set=process_set).numpy()
    return lengths, np.split(everything, np.cumsum(np.abs(lengths))[:-1])


def _lengths_of_all(data: np.ndarray[Any, Any], sign: int, label: str, process_set: ProcessSet) -> list[int]:
    count = tf.constant([sign * data.size], tf.int64)
    return [int(length) for length in allgather.allgather(count, name=label, process_set=process_set).numpy()]


def _text_of(error: Exception, subject: str = "") -> np.ndarray[Any, Any]:
    return np.frombuffer(f"{subject}{type(error).__name__}: {error}".encode(), np.uint8)
