"""Collectives in a graph that a session runs (`tf.compat.v1`), where they have no order: each announces itself.

In a `tf.function` collectives run in program order. A session runs what is fetched, in an order that its executor
chooses, and if collectives were chained, fetching the last would run all before it. So their kernels are others here:
they announce their collective, and the ranks run what all have announced, in one order
(`csrc/core/engine/unordered_calls.h`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util_v2

from tfdist import errors
from tfdist.ops.graph import caller

# How many such graphs each thread has made that have collectives of a process set.
_graphs: Counter[tuple[str, int]] = Counter()


def is_current() -> bool:
    """Whether ops are being added to such a graph, or to a function inside of it."""
    return not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions()


@contextlib.contextmanager
def announcing(op: str, label: str, process_set: int) -> Iterator[None]:
    """The collective that is added to the graph inside announces itself.

    Args:
        op: Name of its generated function, such as "tfdist_grouped_allreduce".
        label: Its name in errors.
        process_set: The number of the set whose ranks have it.

    Raises:
        ConfigError: Where a session may run it several times at once.
    """
    kind = "".join(part.title() for part in op.split("_"))
    graph = tf.compat.v1.get_default_graph()
    if kind == "TfdistJoin":
        raise errors.ConfigError("join cannot be part of a graph with sessions: there the ranks run the same steps.")
    key = attr_value_pb2.AttrValue(s=_key(_outermost(graph, label), label, process_set).encode())
    with tf.device("CPU:0"), graph._kernel_label_map({kind: "session"}), graph._attr_scope({"_tfdist_key": key}):
        yield


def handle(graph: Any) -> tf.Tensor:
    """What collectives in such a graph take as their order, which they do not have: a handle of nothing."""
    if not hasattr(graph, "_tfdist_handle"):
        with graph.as_default(), graph.control_dependencies(None), tf.device("CPU:0"):
            graph._tfdist_handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=(), shared_name="tfdist_order")
    kept: tf.Tensor = graph._tfdist_handle
    return kept


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Inside, collectives run at once, also where a graph is being built for a session; not in a function."""
    if is_current() and not isinstance(tf.compat.v1.get_default_graph(), FuncGraph):
        with context.eager_mode():
            yield
    else:
        yield


def _key(graph: Any, label: str, process_set: int) -> str:
    """By which the ranks of a process set know a collective.

    They make the same graphs of theirs, in the same order on each of their threads. Collectives and graphs of other
    sets do not count: only some of these ranks may have them.
    """
    if not hasattr(graph, "_tfdist_counts"):
        graph._tfdist_counts = {}
    if process_set not in graph._tfdist_counts:
        thread = caller.title(threading.current_thread())
        _graphs[thread, process_set] += 1
        number = f"{_graphs[thread, process_set]}{f' of thread {thread}' if thread else ''}"
        graph._tfdist_counts[process_set] = (number, itertools.count(1))
    number, collectives = graph._tfdist_counts[process_set]
    return f"'{label}' (collective {next(collectives)} of graph {number})"


def _outermost(graph: Any, label: str) -> Any:
    """The graph that the session runs. What is in it, and in branches, runs once at most when something is fetched."""
    inner = graph
    while isinstance(graph, FuncGraph):
        if not isinstance(graph, control_flow_util_v2.CondBranchFuncGraph):
            _refuse(label)
        graph = graph.outer_graph
    around = inner._get_control_flow_context()
    while around is not None:
        if around.IsWhileContext():
            _refuse(label)
        around = around.outer_context
    return graph


def _refuse(label: str) -> None:
    raise errors.ConfigError(
        f"collective {label!r} is in a tf.function or a loop of a graph that a session runs, which may run it several "
        "times at once. Call it in the graph itself or in a tf.cond; or leave the session out and use eager execution "
        "with tf.function."
    )
