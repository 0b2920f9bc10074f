"""Collectives of Python objects, for small data such as a configuration or a log."""

from __future__ import annotations

from typing import Any

import torch

from tfdist.torch.collective.allgather import allgather
from tfdist.torch.collective.broadcast import broadcast
from tfdist.world.object_exchange import ObjectExchange
from tfdist.world.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of rank `root_rank` on every rank.

    Args:
        obj: Anything that cloudpickle can pickle; ignored on all ranks but the root.
        root_rank: The rank whose object is wanted, by its number among all ranks.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    Raises:
        ConfigError: On every rank, if the object cannot be pickled on its rank or unpickled on another.

    Example:

    ```python
    settings = hvd.broadcast_object(settings, root_rank=0, name="settings")
    ```
    """
    return _exchange(name or "broadcast_object", process_set).from_one(obj, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks. A rank that has joined gives none.

    Args:
        obj: Anything that cloudpickle can pickle; may differ by rank.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    Raises:
        ConfigError: On every rank, if an object cannot be pickled on its rank or unpickled on another.

    Example:

    ```python
    hosts = hvd.allgather_object(socket.gethostname(), name="hosts")
    ```
    """
    return _exchange(name or "allgather_object", process_set).from_all(obj)


def _exchange(label: str, process_set: ProcessSet) -> ObjectExchange:
    def gather(data: Any, name: str) -> Any:
        return allgather(_tensor(data), name, process_set).numpy()

    def send(data: Any, root_rank: int, name: str) -> Any:
        return broadcast(_tensor(data), root_rank, name, process_set).numpy()

    return ObjectExchange(label, process_set, gather, send)


def _tensor(data: Any) -> torch.Tensor:
    """PyTorch takes no memory that may not be written, as that of pickled bytes."""
    return torch.from_numpy(data if data.flags.writeable else data.copy())
