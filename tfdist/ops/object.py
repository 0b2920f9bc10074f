"""Collectives of Python objects, for small things such as a configuration or a log."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import errors, runtime
from tfdist.ops import allgather, broadcast
from tfdist.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of rank `root_rank` on every rank.

    Args:
        obj: Anything that can be pickled; looked at on the root only.
        root_rank: The rank whose object is wanted, by its number among all ranks.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    Raises:
        ConfigError: Inside a `tf.function`, compiled by XLA or not.

    Example:

    ```python
    settings = tfdist.broadcast_object(settings, root_rank=0, name="settings")
    ```
    """
    label = name or "broadcast_object"
    _refuse_graph("broadcast_object", label)
    data = _to_array(obj) if runtime.rank() == root_rank else np.zeros(0, np.uint8)
    count = tf.constant(data.size, tf.int64)
    length = int(broadcast.broadcast(count, root_rank, name=f"{label}/bytes", process_set=process_set))
    if runtime.rank() != root_rank:
        data = np.zeros(length, np.uint8)
    return _from_array(broadcast.broadcast(data, root_rank, name=label, process_set=process_set).numpy())


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
        obj: Anything that can be pickled; may differ by rank.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    Raises:
        ConfigError: Inside a `tf.function`, compiled by XLA or not.

    Example:

    ```python
    hosts = tfdist.allgather_object(socket.gethostname(), name="hosts")
    ```
    """
    label = name or "allgather_object"
    _refuse_graph("allgather_object", label)
    data = _to_array(obj)
    count = tf.constant([data.size], tf.int64)
    lengths = allgather.allgather(count, name=f"{label}/bytes", process_set=process_set).numpy()
    everything = allgather.allgather(data, name=label, process_set=process_set).numpy()
    return [_from_array(part) for part in np.split(everything, np.cumsum(lengths)[:-1])]


def _refuse_graph(function: str, label: str) -> None:
    if not tf.executing_eagerly():
        raise errors.ConfigError(
            f"{function} {label!r} ran inside a tf.function, whose graph holds tensors only. Call it outside of the "
            "function, also of one with jit_compile=True, and pass tensors in."
        )


def _to_array(obj: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _from_array(data: np.ndarray[Any, Any]) -> Any:
    # The bytes come from a rank of the same job over MPI, which is not authenticated: it needs a private network.
    return pickle.loads(data.tobytes())  # noqa: S301
