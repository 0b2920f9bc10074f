"""Prints what functions with collectives become for XLA on a GPU, and which handlers there are, as JSON.

Run by conftest.py with the library of hlo_text.cc; the functions are compiled for one rank.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import tensorflow as tf

import tfdist
from tfdist.ops.allreduce import FusedAllreduce
from tfdist.ops.compression import Compression
from tfdist.ops.graph import call
from tfdist.world.process_sets import global_process_set

LONGEST_SHAPE = 4


# A function, and what it is given.
Case = tuple[Callable[..., Any], list[tf.TensorSpec]]


class Argument(ctypes.Structure):
    """As in hlo_text.cc."""

    _fields_ = (
        ("is_variable", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dimensions", ctypes.c_int64 * LONGEST_SHAPE),
    )


def argument_of(tensor: Any) -> Argument:
    """What the compiler is told of one input of a function; for the handle of a variable, what that holds."""
    dtype, shape = tensor.dtype, tensor.shape
    if tensor.dtype == tf.resource:
        (held,) = tensor._handle_data.shape_and_type
        dtype, shape = tf.as_dtype(held.dtype), tf.TensorShape(held.shape)
    sizes = shape.as_list()
    return Argument(tensor.dtype == tf.resource, dtype.as_datatype_enum, len(sizes), tuple(sizes))


class Compiler:
    """Runs TensorFlow's kernels for XLA on GPUs; must be made before anything else is compiled or run."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._entry = self._library.tfdist_hlo_text
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        assert "error" in self._call(b"", b"no function of this name", [])

    def handler(self, target: str, platform: str) -> str:
        """Of the calls of `target`; empty where there is none. See tfdist_handler in hlo_text.cc."""
        kinds = self._library.tfdist_handler(target.encode(), platform.encode())
        names = ("execute", "other stages", "graphs")
        return ", ".join(name for bit, name in enumerate(names) if kinds & 1 << bit)

    def compile(self, function: Callable[..., Any], *specs: tf.TensorSpec) -> dict[str, str]:
        concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
        library = concrete.graph.as_graph_def().library
        library.function.append(concrete.function_def)
        own = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
        arguments = [argument_of(tensor) for tensor in (*own, *concrete.captured_inputs)]
        return self._call(library.SerializeToString(), concrete.function_def.signature.name.encode(), arguments)

    def _call(self, library: bytes, name: bytes, arguments: list[Argument]) -> dict[str, str]:
        text = ctypes.c_void_p()
        array = (Argument * len(arguments))(*arguments)
        counts = ctypes.c_int64(len(library)), ctypes.c_int64(len(arguments))
        compiled = self._entry(library, counts[0], name, array, counts[1], ctypes.byref(text))
        result = ctypes.string_at(text.value or 0).decode()
        self._free(text)
        return {"text" if compiled else "error": result}


def started(x: tf.Tensor, after: float | tf.Tensor = 0.5) -> tf.Tensor:
    """Two reductions that are started before the first is awaited."""

    def start(values: list[tf.Tensor], label: str) -> Callable[[], Sequence[tf.Tensor]]:
        names = tuple(f"{label}/{index}" for index in range(len(values)))
        one, last = call.factor_of(1.0), call.factor_of(after)
        return FusedAllreduce(tfdist.Sum, Compression.none, one, last, label, names, None, global_process_set).start(
            values
        )

    with mock.patch.object(call, "overlaps", return_value=True):
        finish = start([x * 2, x[:2]], "first"), start([x + 1], "second")
        (a, b), (c,) = finish[0](), finish[1]()
    return tf.reduce_sum(a) + tf.reduce_sum(b) + tf.reduce_sum(c)


def make_cases() -> dict[str, Case]:
    vector, scalar, count = tf.TensorSpec([4]), tf.TensorSpec([]), tf.TensorSpec([], tf.int64)
    variable = tf.Variable([1.0, 2.0, 3.0])

    def total(x: tf.Tensor, name: str = "x", **arguments: Any) -> tf.Tensor:
        return tfdist.allreduce(x, op=tfdist.Sum, name=name, **arguments)

    def weighted(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        return tfdist.grouped_allreduce([x], name="x", weight=weight)[0]

    def conditionally_weighted(x: tf.Tensor) -> tf.Tensor:
        weight = tf.shape(x, tf.int64)[0]
        return tf.cond(x[0] > 0, lambda: weighted(x, weight), lambda: x)

    def scaled(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return tfdist.grouped_allreduce(
            [x], op=tfdist.Sum, name="x", prescale_factor=factor, postscale_factor=factor * factor
        )[0]

    def of_each_kind(x: tf.Tensor) -> tf.Tensor:
        first = total(x, "first")
        second = tfdist.reducescatter(x, op=tfdist.Sum, name="second", postscale_factor=0.5)
        third = tfdist.allgather(x, name="third")
        fourth = tfdist.broadcast(x, 0, name="fourth")
        tfdist.broadcast_variables([variable], root_rank=0)
        return first + second + third + fourth

    def nested(x: tf.Tensor) -> tf.Tensor:
        y = tf.cond(x[0] > 0, lambda: total(x, "inside", prescale_factor=0.5), lambda: x)
        return total(y, "outside")

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = total(x, prescale_factor=0.25)
        return tape.gradient(y, x)

    cases: dict[str, Case] = {
        "each kind": (of_each_kind, [vector]),
        "constant factors": (lambda x: total(x, prescale_factor=1 / 3, postscale_factor=-2.0), [vector]),
        "factor that is not finite": (lambda x: total(x, prescale_factor=float("inf")), [vector]),
        "factor of the topology": (lambda x: scaled(x, 1 / tf.cast(tfdist.size_op() + 3, tf.float64)), [vector]),
        "weight by shape": (lambda x: weighted(x, tf.shape(x, tf.int64)[0]), [vector]),
        "weight of data": (weighted, [vector, count]),
        "weight after a collective": (lambda x: weighted(x, tf.cast(total(x)[0], tf.int64)), [vector]),
        "in a conditional": (nested, [vector]),
        "weight from outside of a conditional": (conditionally_weighted, [vector]),
        "gradient": (gradient, [vector]),
        "started": (started, [vector]),
        "started, with a factor of data": (lambda x, y: started(x, tf.cast(y, tf.float64)), [vector, scalar]),
        "topology": (lambda: (tfdist.rank_op(), tfdist.size_op()), []),
        "barrier": (lambda: tfdist.barrier(name="x"), []),
        "alltoall": (lambda x: tfdist.alltoall(x, name="x"), [vector]),
        "join": (tfdist.join, []),
    }
    for dtype in ("float16", "bfloat16", "float32", "float64", "int32"):
        spec = tf.TensorSpec([4], dtype)
        cases[f"factor of data, {dtype}"] = (lambda x, y: scaled(x, tf.cast(y, tf.float64)), [spec, scalar])
    return cases


if __name__ == "__main__":
    compiler = Compiler(sys.argv[1])
    tfdist.init()
    results = {name: compiler.compile(function, *specs) for name, (function, specs) in make_cases().items()}
    targets = (
        *("allreduce", "start_allreduce", "await", "reducescatter", "allgather", "broadcast"),
        *("barrier", "topology"),
    )
    for platform in ("Host", "CUDA"):
        results[platform] = {target: compiler.handler(f"tfdist_{target}", platform) for target in targets}
    print(json.dumps(results))
