"""Horovod's names for graphs that a session runs: variables, hook and objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.ops import broadcast as broadcast_op
from tfdist.ops import object as object_op
from tfdist.ops.graph import session_graph
from tfdist.world.process_sets import ProcessSet, global_process_set


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Returns an op that overwrites the global variables of the graph with the values they have on one rank.

    Args:
        root_rank: The rank whose values are wanted.

    Raises:
        ConfigError: Outside a graph that a session runs.

    Example:

    ```python
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(hvd.broadcast_global_variables(0))
    ```
    """
    if not session_graph.is_current():
        raise errors.UnsupportedError(
            "broadcast_global_variables needs a graph that a session runs (tf.compat.v1); in eager execution call "
            "hvd.broadcast_variables(model.weights, root_rank=0)."
        )
    return broadcast_in_graph(tf.compat.v1.global_variables(), root_rank, global_process_set)


def broadcast_in_graph(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> tf.Operation:
    """Returns an op that overwrites these variables of the graph, of both kinds that TensorFlow 1 has.

    Args:
        variables: Of any number, dtypes and shapes.
        root_rank: The rank whose values are wanted.
        process_set: The ranks that take part.
    """
    values = [tf.identity(tf.convert_to_tensor(variable)) for variable in variables]
    if not values:
        return tf.no_op()
    received = broadcast_op.grouped_broadcast(values, root_rank, name="global variables", process_set=process_set)
    assigned = [tf.compat.v1.assign(*pair) for pair in zip(variables, received, strict=True)]
    return tf.group(*assigned)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites the global variables with those of one rank, after a session was made or restored.

    Args:
        root_rank: The rank whose values are wanted.
        device: Must be "".

    Example:

    ```python
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks, checkpoint_dir=folder_of_rank_0_only) as session:
        session.run(train_step)
    ```
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        if device:
            raise errors.ConfigError(f"device={device!r} is not supported: sessions reduce on the CPU. Leave it empty.")
        self._root_rank = root_rank
        self._op: tf.Operation | None = None

    def begin(self) -> None:
        """Adds the op to the graph, before it is complete."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        """Runs it."""
        session.run(self._op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: tf.compat.v1.Session | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of one rank on every rank; see `tfdist.broadcast_object`.

    Args:
        obj: As in `tfdist.broadcast_object`.
        root_rank: As in `tfdist.broadcast_object`.
        session: None or a session. Objects travel beside it, at once, so which one makes no difference.
        name: As in `tfdist.broadcast_object`.
        process_set: As in `tfdist.broadcast_object`.

    Raises:
        ConfigError: If `session` is something else.
    """
    _check_session(session)
    return object_op.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: tf.compat.v1.Session | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of one object that broadcasts it; see `tfdist.broadcast_object_fn`.

    Args:
        root_rank: As in `tfdist.broadcast_object_fn`.
        session: As in `broadcast_object`.
        name: As in `tfdist.broadcast_object_fn`.
        process_set: As in `tfdist.broadcast_object_fn`.

    Raises:
        ConfigError: If `session` is something else.
    """
    _check_session(session)
    return object_op.broadcast_object_fn(root_rank, name=name, process_set=process_set)


def allgather_object(
    obj: Any,
    session: tf.compat.v1.Session | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks; see `tfdist.allgather_object`.

    Args:
        obj: As in `tfdist.allgather_object`.
        session: As in `broadcast_object`.
        name: As in `tfdist.allgather_object`.
        process_set: As in `tfdist.allgather_object`.

    Raises:
        ConfigError: If `session` is something else.
    """
    _check_session(session)
    return object_op.allgather_object(obj, name=name, process_set=process_set)


def _check_session(session: Any) -> None:
    if session is not None and not hasattr(session, "run"):
        raise errors.ConfigError(f"session= must be a tf.compat.v1.Session or None; received {session!r}.")
