"""Collectives through the C interface of the core. Knows no framework.

A collective is started and waited for, by its number: `csrc/core/engine/collective_api.h` says what each does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist import errors
from tfdist.native import library
from tfdist.native.once import Once

_Numbers = ctypes.POINTER(ctypes.c_int64)
# After so many seconds a wait looks for signals, such as that of Ctrl-C, and continues.
_WAIT_SECONDS = 1.0


class _Tensor(ctypes.Structure):
    """`tfdist_tensor` of the C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", _Numbers),
        ("dims", ctypes.c_int),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
    )


class _Gpu(ctypes.Structure):
    """`tfdist_gpu` of the C interface."""

    _fields_ = (("number", ctypes.c_int), ("stream", ctypes.c_void_p))


class _Tensors(ctypes.Structure):
    """`tfdist_tensors` of the C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("process_set", ctypes.c_int),
        ("tensors", ctypes.POINTER(_Tensor)),
        ("count", ctypes.c_int),
        ("gpu", ctypes.POINTER(_Gpu)),
    )


class _Reduction(ctypes.Structure):
    """`tfdist_reduction` of the C interface."""

    _fields_ = (
        ("reduction", ctypes.c_char_p),
        ("compression", ctypes.c_char_p),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
    )


@dataclass(frozen=True)
class DenseTensor:
    """A contiguous, row-major tensor that somebody else keeps.

    Attributes:
        name: What errors call it.
        dtype: The name of its dtype, such as "float32".
        shape: Its shape.
        input: The address of its elements.
        output: Where the result of the same shape goes; may be `input`. Not used where `result` has it.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    input: int
    output: int = 0


@dataclass(frozen=True)
class Gpu:
    """The GPU that has the tensors of a collective.

    Attributes:
        number: By its driver.
        stream: The address of a stream of the driver, or 1, the default one. What it holds when the collective is
            started makes the tensors, and has used the memory of the results before.
    """

    number: int
    stream: int


@dataclass(frozen=True)
class Call:
    """What a collective is called by, and this rank's tensors.

    Attributes:
        name: By which the ranks know it. One that is under way has none like it.
        process_set: The number of the ranks' set; 0 for all ranks.
        tensors: This rank's tensors.
        gpu: Where they are; None for the host's memory. Only for an all-reduce and a broadcast.
    """

    name: str
    process_set: int
    tensors: Sequence[DenseTensor]
    gpu: Gpu | None = None

    def described(self) -> Any:
        """The structure of the C interface."""
        made = [
            _Tensor(
                *(tensor.name.encode(), tensor.dtype.encode()),
                *((ctypes.c_int64 * len(tensor.shape))(*tensor.shape), len(tensor.shape)),
                *(tensor.input, tensor.output),
            )
            for tensor in self.tensors
        ]
        gpu = None if self.gpu is None else ctypes.pointer(_Gpu(self.gpu.number, self.gpu.stream))
        array = (_Tensor * len(made))(*made)
        return ctypes.byref(_Tensors(self.name.encode(), self.process_set, array, len(made), gpu))


@dataclass(frozen=True)
class Reduction:
    """How tensors are reduced.

    Attributes:
        name: "sum", "average", "min", "max", "product" or "adasum".
        compression: The name of a compression of `config.COMPRESSIONS`.
        prescale: Multiplies the tensors.
        postscale: Multiplies the results.
    """

    name: str
    compression: str = "none"
    prescale: float = 1.0
    postscale: float = 1.0

    def described(self) -> Any:
        """The structure of the C interface."""
        names = (self.name.encode(), self.compression.encode())
        return ctypes.byref(_Reduction(*names, self.prescale, self.postscale))


class ResultMemory:
    """The memory of a result, for as long as somebody holds this: an array of bytes to NumPy.

    Args:
        address: From `tfdist_result`.
        count: How many bytes it has, above 0.
    """

    def __init__(self, address: int, count: int) -> None:
        self._address, self._free = address, _library().tfdist_free_result  # modules may be gone before this object
        self.__array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._free(self._address)


def allreduce(call: Call, reduction: Reduction) -> int:
    """Starts an all-reduce; returns its number.

    Raises:
        ConfigError: If this rank's arguments have no meaning, or the name is in use.
        TfdistError: As `library.call`.
    """
    return _start("tfdist_start_allreduce", call.described(), reduction.described())


def reducescatter(call: Call, reduction: Reduction) -> int:
    """Starts a reduce-scatter, as `allreduce`. Result i: this rank's rows of tensor i."""
    return _start("tfdist_start_reducescatter", call.described(), reduction.described())


def broadcast(call: Call, root: int) -> int:
    """Starts a broadcast of the tensors of rank `root` of all ranks, as `allreduce`."""
    return _start("tfdist_start_broadcast", call.described(), root)


def allgather(call: Call) -> int:
    """Starts an all-gather, as `allreduce`. Result i: the rows of tensor i; the last: the rows by tensor and rank."""
    return _start("tfdist_start_allgather", call.described())


def alltoall(call: Call, splits: Sequence[int]) -> int:
    """Starts an all-to-all of one tensor, as `allreduce`. Results: what came; the number of rows from each rank."""
    numbers = (ctypes.c_int64 * len(splits))(*splits)
    return _start("tfdist_start_alltoall", call.described(), numbers, len(splits))


def barrier(call: Call) -> int:
    """Starts a barrier, as `allreduce`."""
    return _start("tfdist_start_barrier", call.described())


def has_ended(number: int) -> bool:
    """Whether a collective has ended, well or not.

    Raises:
        ConfigError: If there is none of this number.
    """
    ended = ctypes.c_int()
    try:
        _call("tfdist_wait", number, 0.0, ctypes.byref(ended))
    except errors.TfdistError:
        if not ended.value:
            raise
    return bool(ended.value)


def wait(number: int) -> None:
    """Waits until a collective has ended; the deadlines of the engine end it.

    Raises:
        TfdistError: That of the collective.
    """
    ended = ctypes.c_int()
    while not ended.value:
        _call("tfdist_wait", number, _WAIT_SECONDS, ctypes.byref(ended))


def result(number: int, index: int, row_bytes: int) -> tuple[ResultMemory | None, int]:
    """A result of a collective that has ended well, once.

    Args:
        number: That of the collective.
        index: That of the result.
        row_bytes: The bytes of one row.

    Returns:
        The memory, None if there is no element; and the number of rows.
    """
    address, rows = ctypes.c_void_p(), ctypes.c_int64()
    _call("tfdist_result", number, index, ctypes.byref(address), ctypes.byref(rows))
    memory = None if address.value is None else ResultMemory(address.value, rows.value * row_bytes)
    return memory, rows.value


def forget(number: int) -> None:
    """The number of a collective that is not waited for any more. It still runs to its end."""
    _library().tfdist_forget(number)


def join() -> int:
    """Tells that this rank has nothing left to contribute, and waits for all; returns the rank that joined last.

    Raises:
        TfdistError: As `library.call`.
    """
    last = ctypes.c_int()
    _call("tfdist_join", ctypes.byref(last))
    return last.value


def _start(function: str, *arguments: Any) -> int:
    number = ctypes.c_int64()
    _call(function, *arguments, ctypes.byref(number))
    return number.value


def _call(function: str, *arguments: Any) -> None:
    _library()
    try:
        library.call(function, *arguments)
    except errors.MismatchError as error:
        if "tfdist.init()" not in str(error):
            raise
        raise errors.NotInitializedError(str(error)) from None


@Once
def _library() -> ctypes.CDLL:
    """The core, with the functions of this interface declared."""
    core = library.load()
    text, number, pointer = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
    tensors, reduction, counted = ctypes.POINTER(_Tensors), ctypes.POINTER(_Reduction), (_Numbers, text, number)
    core.tfdist_start_allreduce.argtypes = [tensors, reduction, *counted]
    core.tfdist_start_reducescatter.argtypes = [tensors, reduction, *counted]
    core.tfdist_start_broadcast.argtypes = [tensors, number, *counted]
    core.tfdist_start_allgather.argtypes = [tensors, *counted]
    core.tfdist_start_alltoall.argtypes = [tensors, _Numbers, number, *counted]
    core.tfdist_start_barrier.argtypes = [tensors, *counted]
    core.tfdist_wait.argtypes = [ctypes.c_int64, ctypes.c_double, ctypes.POINTER(number), text, number]
    core.tfdist_result.argtypes = [ctypes.c_int64, number, ctypes.POINTER(pointer), _Numbers, text, number]
    core.tfdist_free_result.argtypes = [pointer]
    core.tfdist_free_result.restype = core.tfdist_forget.restype = None
    core.tfdist_forget.argtypes = [ctypes.c_int64]
    core.tfdist_join.argtypes = [ctypes.POINTER(number), text, number]
    return core
