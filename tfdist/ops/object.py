"""Collectives of Python objects, for small things such as a configuration or a log."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import runtime
from tfdist.ops import allgather, broadcast


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the object of rank `root_rank` on every rank.

    Args:
        obj: Anything that can be pickled; looked at on the root only.
        root_rank: The rank whose object is wanted.
        name: Same on every rank; errors name the object by it.

    Example:

    ```python
    settings = tfdist.broadcast_object(settings, root_rank=0, name="settings")
    ```
    """
    label = name or "broadcast_object"
    data = _to_array(obj) if runtime.rank() == root_rank else np.zeros(0, np.uint8)
    length = int(broadcast.broadcast(tf.constant(data.size, tf.int64), root_rank, name=f"{label}/bytes"))
    if runtime.rank() != root_rank:
        data = np.zeros(length, np.uint8)
    return _from_array(broadcast.broadcast(data, root_rank, name=label).numpy())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks.

    Args:
        obj: Anything that can be pickled; may differ by rank.
        name: Same on every rank; errors name the object by it.

    Example:

    ```python
    hosts = tfdist.allgather_object(socket.gethostname(), name="hosts")
    ```
    """
    label = name or "allgather_object"
    data = _to_array(obj)
    lengths = allgather.allgather(tf.constant([data.size], tf.int64), name=f"{label}/bytes").numpy()
    everything = allgather.allgather(data, name=label).numpy()
    return [_from_array(part) for part in np.split(everything, np.cumsum(lengths)[:-1])]


def _to_array(obj: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _from_array(data: np.ndarray[Any, Any]) -> Any:
    # The bytes come from a rank of the same job over its own transport, never from a socket that others can reach.
    return pickle.loads(data.tobytes())  # noqa: S301
