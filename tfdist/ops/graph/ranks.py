"""How many ranks there are, and which this is, in a step that stays valid when ranks are lost and come.

In functions that XLA compiles they are fixed, as shapes are: an elastic `fit` makes new ones when the ranks have
changed (`session.compiled_for_ranks`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from tfdist import config
from tfdist.ops.graph import call, order
from tfdist.world.process_sets import ProcessSet
from tfdist.world.session import session


def size_of(process_set: ProcessSet) -> Any:
    """The number of ranks; in a graph of an elastic job an int32 scalar that is read when it runs."""
    return _topology("size") if _is_read(process_set) else process_set.size()


def rank_of(process_set: ProcessSet) -> Any:
    """This process's number among them, as `size_of`."""
    return _topology("rank") if _is_read(process_set) else process_set.rank()


def divisor_of(process_set: ProcessSet) -> Any:
    """As `size_of`, but a float64 scalar, by which Python's numbers and float64 scalars can be divided."""
    size = size_of(process_set)
    return tf.cast(size, tf.float64) if isinstance(size, tf.Tensor) else size


def note_if_compiled(process_set: ProcessSet) -> bool:
    """Whether XLA fixes, in what is being traced, ranks that may change: the call that follows has rows of each."""
    if not _may_change(process_set) or not _is_compiled():
        return False
    session.compiled_for_ranks = True
    return True


def _topology(what: str) -> tf.Tensor:
    return call.run_anytime("tfdist_topology", what=what, process_set=0)


def _is_read(process_set: ProcessSet) -> bool:
    return _may_change(process_set) and not note_if_compiled(process_set)


def _may_change(process_set: ProcessSet) -> bool:
    """Only all ranks change; other process sets end where one of theirs is lost. An eager call ends before."""
    return config.is_elastic() and not tf.executing_eagerly() and not call.number_of(process_set)


def _is_compiled() -> bool:
    graph: Any = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        if order.begins_compiling(graph):
            return True
        graph = graph.outer_graph
    return False
