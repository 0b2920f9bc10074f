"""Collectives of Python objects, for small data such as a configuration or a log."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch

from tfdist.errors import ConfigError
from tfdist.system import pickler
from tfdist.torch.collective.allgather import gather_rows
from tfdist.torch.collective.broadcast import broadcast, broadcast_
from tfdist.torch.collective.handle import label_of
from tfdist.world import runtime
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
        ConfigError: On every rank, if the object cannot be pickled; on a rank that cannot unpickle it.

    Example:

    ```python
    settings = hvd.broadcast_object(settings, root_rank=0, name="settings")
    ```
    """
    label, _ = label_of(name, process_set)
    is_root = runtime.rank() == root_rank
    data, sign = _pickled(obj) if is_root else (torch.empty(0, dtype=torch.uint8), 1)
    count = broadcast(torch.tensor(sign * data.numel()), root_rank, f"{label}/bytes", process_set)
    length = int(count)
    if not is_root:
        data = torch.empty(abs(length), dtype=torch.uint8)
    broadcast_(data, root_rank, label, process_set)
    return _loaded(data, length < 0, root_rank, label)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks. A rank that has joined gives none.

    Args:
        obj: Anything that cloudpickle can pickle; may differ by rank.
        name: Same on every rank; errors name the object by it.
        process_set: The ranks that take part.

    Raises:
        ConfigError: On every rank, if an object cannot be pickled; on a rank that cannot unpickle one.

    Example:

    ```python
    hosts = hvd.allgather_object(socket.gethostname(), name="hosts")
    ```
    """
    label, _ = label_of(name, process_set)
    data, sign = _pickled(obj)
    # One byte more, whose value tells whether what follows is an object: every rank that takes part gives some.
    head = torch.tensor([1 if sign > 0 else 0], dtype=torch.uint8)
    gathered, rows = gather_rows(torch.cat([head, data]), label, process_set)
    parts = zip(gathered.split(rows), process_set.ranks, strict=True)
    return [_loaded(part[1:], not part[0], rank, label) for part, rank in parts if part.numel()]


def _pickled(obj: Any) -> tuple[torch.Tensor, int]:
    """The pickled object and 1, or the error and -1."""
    try:
        data, sign = pickler.dumps_by_name(obj), 1
    except Exception as error:  # noqa: BLE001  (whatever its own code raises; all ranks raise it)
        data, sign = f"{type(error).__name__}: {error}".encode(), -1
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy()), sign


def _loaded(data: torch.Tensor, is_error: bool, rank: int, label: str) -> Any:
    content = data.numpy().tobytes()
    if is_error:
        raise ConfigError(
            f"{label!r}: the object of rank {rank} cannot be pickled there: {content.decode(errors='replace')}. Send "
            "plain data (numbers, text, arrays, paths) instead; locks, generators and files cannot be sent."
        )
    try:
        # The bytes come from a rank of the same job.
        return pickle.loads(content)  # noqa: S301
    except Exception as error:
        raise ConfigError(
            f"{label!r}: the object of rank {rank} cannot be unpickled here ({type(error).__name__}: {error}). Every "
            "rank must be able to import the modules that define it."
        ) from error
