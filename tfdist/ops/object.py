"""Collectives of Python objects, for small data such as a configuration or a log."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.ops import allgather, broadcast
from tfdist.ops.graph import session_graph
from tfdist.world.object_exchange import ObjectExchange
from tfdist.world.process_sets import ProcessSet, global_process_set


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
    with _at_once("broadcast_object", label):
        return _exchange(label, process_set).from_one(obj, root_rank)


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
    with _at_once("allgather_object", label):
        return _exchange(label, process_set).from_all(obj)


def _exchange(label: str, process_set: ProcessSet) -> ObjectExchange:
    def gather(data: Any, name: str) -> Any:
        return allgather.allgather(data, name=name, process_set=process_set).numpy()

    def send(data: Any, root_rank: int, name: str) -> Any:
        return broadcast.broadcast(data, root_rank, name=name, process_set=process_set).numpy()

    return ObjectExchange(label, process_set, gather, send)


@contextlib.contextmanager
def _at_once(function: str, label: str) -> Iterator[None]:
    with session_graph.left():
        if not tf.executing_eagerly():
            raise errors.ConfigError(
                f"{function} {label!r} ran inside a tf.function, whose graph holds only tensors. Call it outside the "
                "function, with or without jit_compile=True, and pass tensors in."
            )
        yield
