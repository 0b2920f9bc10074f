"""Runs one generated op and translates its error into tfdist's exceptions. Knows no collective."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import _native, errors
from tfdist.process_sets import ProcessSet

# What collectives carry.
DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

_TRANSLATIONS: tuple[tuple[type[tf.errors.OpError], type[errors.TfdistError]], ...] = (
    (tf.errors.FailedPreconditionError, errors.MismatchError),
    (tf.errors.UnavailableError, errors.PeerLostError),
    (tf.errors.DeadlineExceededError, errors.StallError),
    (tf.errors.InvalidArgumentError, errors.ConfigError),
)


_keep: list[tf.Variable] = []
# What TensorFlow puts around a kernel's message; it names the op, so it differs where ranks called different ones.
_DECORATION = re.compile(r"^\{\{function_node [^}]*\}\}\s*|\s*\[Op:\w+\] name:.*$", re.DOTALL)


def run(op: str, *args: Any, **kwargs: Any) -> Any:
    """Calls the generated function `op` of a collective.

    Raises:
        TfdistError: Of the class that belongs to the op's status, when it runs eagerly.
    """
    return run_anytime(op, *args, order=order_resource(), **kwargs)


def run_anytime(op: str, *args: Any, **kwargs: Any) -> Any:
    """Calls the generated function `op`, which is no collective and needs no order.

    Raises:
        TfdistError: As `run`.
    """
    function = getattr(_native.ops(), op)
    try:
        return function(*args, **kwargs)
    except tf.errors.OpError as error:
        for kind, translation in _TRANSLATIONS:
            if isinstance(error, kind):
                if "tfdist.init()" in error.message:
                    translation = errors.NotInitializedError
                raise translation(_DECORATION.sub("", error.message)) from None
        raise


@functools.cache
def order_resource() -> tf.Tensor:
    """The handle that every collective takes, so that `tf.function` keeps all of them in program order.

    Automatic control dependencies order the ops on one resource, through functions, `cond` and `while_loop`. Stateful
    ops without a resource are ordered only among themselves.
    """
    with tf.init_scope(), tf.device("CPU"):
        _keep.append(tf.Variable(0, trainable=False, name="tfdist_order"))
    return _keep[0].handle


def factor_of(value: Any) -> tf.Tensor:
    """A factor as an op takes it: a float64 scalar. `tf.cast` would take a Python number through float32."""
    return tf.cast(value, tf.float64) if hasattr(value, "dtype") else tf.constant(value, tf.float64)


def number_of(process_set: ProcessSet) -> int:
    """The number of a process set, as an op takes it.

    Raises:
        ConfigError: If it is no process set.
        NotInitializedError: If it is not in use.
    """
    if not isinstance(process_set, ProcessSet):
        raise errors.ConfigError(
            f"process_set takes a tfdist.ProcessSet; received {process_set!r}. Make one: tfdist.ProcessSet([0, 1])"
        )
    return process_set.number()


def tensors_of(values: Sequence[Any], names: Sequence[str]) -> list[tf.Tensor]:
    """The values as tensors.

    Raises:
        ConfigError: If one has a dtype that collectives do not carry; names it.
    """
    tensors = [tf.convert_to_tensor(value) for value in values]
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.dtype.name not in DTYPES:
            raise errors.ConfigError(
                f"{name} has dtype {tensor.dtype.name}; collectives carry {', '.join(DTYPES)}. Cast it first."
            )
    return tensors


def names_of(tensors: Sequence[Any], label: str) -> list[str]:
    """A name for each tensor, the same on every rank: the label, numbered where there are several."""
    if len(tensors) == 1:
        return [label]
    return [f"{label}/{index}" for index in range(len(tensors))]


def refuse_device(**devices: str) -> None:
    """Raises an error for a Horovod device argument that names a device.

    Raises:
        ConfigError: If any is not empty; the engine chooses by where the tensor lies.
    """
    for name, device in devices.items():
        if device:
            raise errors.ConfigError(
                f"{name}={device!r} cannot be honoured: a collective runs where its tensor lies. Leave {name} empty "
                "and place the tensor with tf.device."
            )
