"""Keeps the collectives of a process in program order, in every graph that TensorFlow makes of the program."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util, control_flow_util_v2
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfdist import config, errors
from tfdist.native import hardware
from tfdist.ops.graph import session_graph

_BRANCH_OR_BODY = (
    control_flow_util_v2.CondBranchFuncGraph,
    control_flow_util_v2.WhileBodyFuncGraph,
    control_flow_util_v2.WhileCondFuncGraph,
)
_keep: list[tf.Variable] = []


@functools.cache
def resource() -> tf.Tensor:
    """The handle that every collective takes, so that `tf.function` keeps all of them in program order.

    Automatic control dependencies order the ops on one resource, through functions, `cond` and `while_loop`. Stateful
    ops without a resource are ordered only among themselves.
    """
    # TensorFlow runs an op where its resources are. GPUs have no variables of int32. `tf.function` would notice a new
    # `tf.Variable`, and trace the function again. In a graph that a session runs, `init_scope` does not leave it.
    with tf.init_scope(), context.eager_mode(), tf.device(collective_device()):
        _keep.append(ResourceVariable(0, dtype=tf.int64, trainable=False, name="tfdist_order"))
    return _keep[0].handle


def here() -> tf.Tensor:
    """The handle for an op made now."""
    return resource() if tf.executing_eagerly() else _inside(tf.compat.v1.get_default_graph())


def collective_device() -> str:
    """Where this process runs collectives: on its GPU with NCCL if it has one, unless configured otherwise."""
    by_nccl = config.value("gpu_operations") == "nccl"
    return "GPU:0" if by_nccl and hardware.gpus() else "CPU:0"


def _inside(graph: Any) -> tf.Tensor:
    """The handle in a graph."""
    if not isinstance(graph, FuncGraph):
        return session_graph.handle(graph)
    # Kept with the graph: a table of handles, which refer to their graphs, would keep all graphs.
    if not hasattr(graph, "_tfdist_order"):
        graph._tfdist_order = _captured(graph)
        graph._tfdist_compiled = begins_compiling(graph)
        if not graph._add_control_dependencies:
            _keep_order(graph)
    handle: tf.Tensor = graph._tfdist_order
    return handle


def _captured(graph: Any) -> tf.Tensor:
    """The handle that a graph captures from outside.

    The gradients of loops and branches can capture from the enclosing graph, but not an eager tensor. A function cannot
    capture from the enclosing graph, because a different graph may call it next; nor can it hold an eager tensor if the
    gradient of a loop may call it. So nested functions request the caller's handle with every call. That costs 7 us, so
    functions that are called eagerly do not.
    """
    _refuse_loop_across_compilation(graph)
    forward = _branch_whose_handle_it_takes(graph)
    if forward is not None:
        return graph.capture(_inside(forward))
    if isinstance(graph, _BRANCH_OR_BODY):
        return graph.capture(_inside(graph.outer_graph))
    if graph._add_control_dependencies and isinstance(graph.outer_graph, FuncGraph):
        with graph.as_default():
            return graph._experimental_capture_side_input_by_ref("tfdist_order", functools.partial(_of_caller, graph))
    return graph.capture(resource())


def _branch_whose_handle_it_takes(graph: Any) -> Any:
    """The branch whose gradient a graph is, if TensorFlow mistakes its handle for that of the enclosing graph.

    TensorFlow's own part of such a gradient may use it, for example for a loop in the branch. TensorFlow merges
    identical inputs of a branch.
    """
    if not isinstance(graph, control_flow_util_v2.CondBranchFuncGraph):
        return None
    forward, around = getattr(graph, "_forward_graph", None), graph.outer_graph
    if forward is None or not hasattr(forward, "_tfdist_order"):
        return None
    same = forward.outer_graph is around or forward.outer_graph is _branch_whose_handle_it_takes(around)
    return forward if same else None


def _refuse_loop_across_compilation(graph: Any) -> None:
    """Rejects the gradient of a compiled function's loop if it is taken outside the function.

    TensorFlow runs the function, then cannot pass on the loop's lists of intermediates, and has by then freed the
    variables that the function writes: the process may crash later.

    Raises:
        ConfigError: Names the remedy.
    """
    forward = getattr(graph, "_forward_graph", None)
    if not isinstance(graph, control_flow_util_v2.WhileBodyFuncGraph) or forward is None:
        return
    function = _function_around(forward)
    if getattr(function, "_tfdist_compiled", False) and _function_around(graph) is not function:
        raise errors.ConfigError(
            f"{function.name} has jit_compile=True and a loop with collectives, but its gradient is taken outside "
            "the function, which TensorFlow does not support. Move the tf.GradientTape into the compiled function, "
            "or remove jit_compile."
        )


def _function_around(graph: Any) -> Any:
    while isinstance(graph, _BRANCH_OR_BODY):
        graph = graph.outer_graph
    return graph


def begins_compiling(graph: Any) -> bool:
    """Whether a function that is being traced has `jit_compile=True`, which TensorFlow notes in the graph around it."""
    return control_flow_util.InXlaContext(graph.outer_graph)


def _of_caller(function: Any) -> tf.Tensor:
    caller = tf.compat.v1.get_default_graph()
    being_traced = caller is function
    return resource() if tf.executing_eagerly() or being_traced else _inside(caller)


def _keep_order(graph: Any) -> None:
    """Emulates automatic control dependencies in a graph without them.

    That is the gradient of a function whose tape is outside it. There TensorFlow also prunes what no result needs, and
    continues before the rest is done.
    """
    create = graph._create_op_internal

    def create_in_order(op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> tf.Operation:
        if not any(tensor is graph._tfdist_order or tensor is resource() for tensor in inputs):
            return create(op_type, inputs, *args, **kwargs)
        with graph.control_dependencies(graph.control_outputs[-1:]):
            op = create(op_type, inputs, *args, **kwargs)
        graph.control_outputs.append(op)
        return op

    graph._create_op_internal = create_in_order
