"""Rank and size as tensors that a graph reads when it runs, so that a trace stays valid when the number of ranks
changes.

Inside a function with `jit_compile=True` on a GPU they are fixed at compilation: make a new `tf.function` after the
number of ranks has changed.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops.graph import call
from tfdist.world import process_sets


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank as an int32 scalar, read when the op runs.

    Args:
        name: Name of the op in a graph.

    Example:

    ```python
    is_first = tf.equal(tfdist.rank_op(), 0)
    ```
    """
    return call.run_anytime("tfdist_topology", what="rank", name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks as an int32 scalar, read when the op runs.

    Args:
        process_set_id: The number of a process set; 0 for all ranks.
        name: Name of the op in a graph.

    Raises:
        ConfigError: If there is no such process set.
    """
    where = process_sets.of_number(process_set_id)
    if not where.included():  # this process has no engine that could tell, and the set stays as it is
        return tf.constant(len(where.ranks), name=name)
    return call.run_anytime("tfdist_topology", what="size", process_set=process_set_id, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number on its host as an int32 scalar, read when the op runs.

    Args:
        name: Name of the op in a graph.
    """
    return call.run_anytime("tfdist_topology", what="local_rank", name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host as an int32 scalar, read when the op runs.

    Args:
        name: Name of the op in a graph.
    """
    return call.run_anytime("tfdist_topology", what="local_size", name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Whether this process is in a process set, as an int32 scalar that is 0 or 1.

    Args:
        process_set_id: The number of a process set; 0 for all ranks.
        name: Name of the op in a graph.

    Raises:
        ConfigError: If there is no such process set.
    """
    ranks = process_sets.of_number(process_set_id).ranks
    return tf.reduce_sum(tf.cast(tf.equal(rank_op(), ranks), tf.int32), name=name)
