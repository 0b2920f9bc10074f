"""Runs one generated op and translates its error into tfdist's exceptions. Knows no collective."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.native import adapter, library
from tfdist.ops.graph import caller, failure, order, replica, session_graph
from tfdist.world import tuning
from tfdist.world.process_sets import ProcessSet
from tfdist.world.session import session

# What collectives carry.
DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

# How many names of collectives called eagerly are no mistake.
MOST_NAMES = 1000

_logger = logging.getLogger("tfdist")
_names: set[str] = set()
_forked: list[bool] = []  # not empty in a process that was forked from one that has imported this
os.register_at_fork(after_in_child=lambda: _forked.append(True))


def run(op: str, *args: Any, **kwargs: Any) -> Any:
    """Calls the generated function `op` of a collective.

    Raises:
        TfdistError: Of the class that corresponds to the op's status, when it runs eagerly.
        ConfigError: In one of several replicas of a `tf.distribute` strategy.
    """
    replica.need_one()
    session.collectives += 1
    if tf.executing_eagerly():
        _need_others(str(kwargs.get("label", "")))
        _note_name(str(kwargs.get("label", "")))
        with caller.named(kwargs.get("process_set", 0)):
            return run_anytime(op, *args, order=order.here(), **kwargs)
    if _forked:
        # The threads that would run the graph are not there: it would hang instead of saying so.
        library.call("tfdist_check_place")
    if session_graph.is_current():
        with session_graph.announcing(op, str(kwargs.get("label", "")), kwargs.get("process_set", 0)):
            return run_anytime(op, *args, order=order.here(), **kwargs)
    return run_anytime(op, *args, order=order.here(), **kwargs)


def meet(name: str) -> None:
    """Waits for all ranks, from outside of graphs. Each time may have another name, since no op of TensorFlow runs.

    Raises:
        TfdistError: As `run`.
    """
    replica.need_one()
    session.collectives += 1
    _need_others(name)
    with caller.named(0):
        try:
            library.call("tfdist_barrier", name.encode())
        except errors.TfdistError as error:
            raise failure.explained_error(error) from None


def _need_others(name: str) -> None:
    if session.catches_up:
        raise errors.ConfigError(
            f"a callback calls the collective {name!r} in on_train_begin, on a rank that joins a training: the others "
            "have begun it before and do not call it again. Call it before fit. Ranks are then added by a restart of "
            "all."
        )


def _note_name(name: str) -> None:
    """TensorFlow keeps a kernel for each name with which an op has run eagerly."""
    if len(_names) < MOST_NAMES and name not in _names:
        _names.add(name)
        if len(_names) == MOST_NAMES:
            _logger.warning(
                "collectives were called eagerly under %d names, of which each keeps some 40 kB for the life of the "
                "process; the newest are like %r. Use the same name in every step.",
                *(MOST_NAMES, name),
            )


def run_anytime(op: str, *args: Any, **kwargs: Any) -> Any:
    """Calls the generated function `op`, which is not a collective and needs no order.

    Raises:
        TfdistError: As `run`.
    """
    function = getattr(adapter.ops(), op)
    try:
        return function(*args, **kwargs)
    except tf.errors.OpError as error:
        raise failure.translated(error) from None


def overlaps() -> bool:
    """Whether gradients are reduced while the computation continues: on a GPU, and on the CPU with a communication
    thread.

    On the CPU both compete for the same cores.
    """
    on_side = order.collective_device().startswith("GPU") or tuning.current().thread
    return on_side and not session_graph.is_current()


def factor_of(value: Any) -> tf.Tensor:
    """A factor in the form ops take: a float64 scalar. `tf.cast` would convert a Python number through float32."""
    return tf.cast(value, tf.float64) if hasattr(value, "dtype") else tf.constant(value, tf.float64)


def number_of(process_set: ProcessSet) -> int:
    """The number of a process set, in the form ops take.

    Raises:
        ConfigError: If it is not a process set.
        NotInitializedError: If it is not in use.
    """
    if not isinstance(process_set, ProcessSet):
        raise errors.ConfigError(
            f"process_set must be a tfdist.ProcessSet; received {process_set!r}. Make one with tfdist.ProcessSet([0, "
            "1])"
        )
    return process_set.number()


def tensors_of(values: Sequence[Any], names: Sequence[str]) -> list[tf.Tensor]:
    """The values as tensors.

    Raises:
        ConfigError: If one has a dtype that collectives do not support; names it.
    """
    tensors = [tf.convert_to_tensor(value) for value in values]
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.dtype.name not in DTYPES:
            raise errors.ConfigError(
                f"{name} has dtype {tensor.dtype.name}; collectives support {', '.join(DTYPES)}. Cast it first."
            )
    return tensors


def differentiate(
    gradients: Sequence[Any], function: Callable[[list[int], list[tf.Tensor]], Sequence[tf.Tensor]]
) -> list[tf.Tensor | None]:
    """Computes gradients of inputs from those of the results, for floating results: integers have none.

    Args:
        gradients: One per result: a tensor, a `tf.IndexedSlices` if its rows were looked up, or None.
        function: Takes the positions of the floating results and their gradients, all dense; returns one gradient each.
    """
    dense = {
        place: tf.convert_to_tensor(gradient)
        for place, gradient in enumerate(gradients)
        if gradient is not None and gradient.dtype.is_floating
    }
    result: list[tf.Tensor | None] = [None] * len(gradients)
    if not dense:
        return result
    results = function(list(dense), list(dense.values()))
    for place, gradient in zip(dense, results, strict=True):
        result[place] = gradient
    return result


def names_of(tensors: Sequence[Any], label: str) -> list[str]:
    """A name for each tensor, the same on every rank: the label, numbered if there are several."""
    if len(tensors) == 1:
        return [label]
    return [f"{label}/{index}" for index in range(len(tensors))]


def refuse_device(**devices: str) -> None:
    """Rejects a Horovod device argument that names a device.

    Raises:
        ConfigError: If any is not empty; the engine chooses by where the tensor is.
    """
    for name, device in devices.items():
        if device:
            raise errors.ConfigError(
                f"{name}={device!r} is not supported: all collectives of a process run on its GPU, or on the CPU "
                f"with TFDIST_GPU_OPERATIONS=mpi. Leave {name} empty."
            )
