"""What a rank of a `RayExecutor` does: it calls what its actor sends, so objects live from call to call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.errors import ConfigError
from tfdist.launch.function import parcel, worker
from tfdist.ray import channel
from tfdist.system.rank import job_place

# Set by the actor for its rank: where it listens.
VARIABLE = "_TFDIST_RAY_ACTOR"

# What `executable_cls` of the executor has made.
_executable: Any = None


def serve() -> None:
    """The function of a rank."""
    connection = channel.join(os.environ[VARIABLE])
    channel.send(connection, channel.RANK, os.environ[job_place.OWN[0]].encode())
    for _, data in channel.frames(connection):
        answer, _ = worker.call(data)
        channel.send(connection, channel.ANSWER, b"".join(answer))


def make(cls: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Makes the object that `apply` passes on."""
    global _executable
    _executable = cls(*args, **kwargs)


def apply(function: Callable[[Any], Any]) -> Any:
    """Calls a function with that object; with None if there is none."""
    return function(_executable)


def log(values: Mapping[str, Any]) -> None:
    """Passes values from rank 0 to the callbacks of the call, in the driver. Does nothing on others, and elsewhere.

    Args:
        values: Names and values, which can be pickled.

    Raises:
        ConfigError: If it is no mapping.
        NotInitializedError: If `tfdist.init` was not called before.

    Example:

    ```python
    tfdist.ray.log({"epoch": epoch, "loss": float(loss)})
    ```
    """
    import tfdist

    name = os.environ.get(VARIABLE)
    if name is None or tfdist.rank() != 0:
        return
    if not isinstance(values, Mapping):
        raise ConfigError(f"tfdist.ray.log: expected names and values, as in {{'loss': 0.5}}; received {values!r}.")
    with contextlib.suppress(ConnectionError), channel.join(name) as connection:  # a rank ends with its actor
        channel.send(connection, channel.LOG, b"".join(parcel.pack_result(dict(values))))
        next(channel.frames(connection), None)
