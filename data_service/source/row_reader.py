"""Reads rows with Python libraries for `tf.data` pipelines, wherever they run: the Python side of the op
TfdistReadRows.

Not a source of data: `parquet`, `tfrecord` and `image` build pipelines, `parquet_file` and `store_file` read.

A pipeline with a `py_function` cannot move to a worker of a data service, because the function stays in its process.
The op TfdistReadRows can: it calls the reader of whatever process it runs in, and every tfdist process has the same
one. It runs on threads of the library, never on TensorFlow's: see `tfdist/csrc/data/row_reader.h` for why.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tfdist.errors import StallError
from tfdist.native import library
from tfdist.system import exit_hook

# Reads of rows ask for two of these; objects of a store are fetched side by side, because each waits for an answer.
_THREADS = 16
# A read that is under way may take this long when the process, or a server in it, ends.
_CLOSE_SECONDS = 60.0
_MESSAGE_BYTES = 4096

# How a request for rows of Parquet begins; others are for `store_file`.
ROWS = b"rows"

_INVALID_ARGUMENT, _NOT_FOUND, _INTERNAL = 3, 5, 13
_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char), ctypes.c_int64)


class _GivenColumn(ctypes.Structure):
    """`tfdist_column` of the C API."""

    _fields_ = (
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_int),
        ("values", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("ends", ctypes.c_void_p),
    )


class Column(NamedTuple):
    """The values of one output, in memory kept alive by `owner`: numbers, or string bytes with the end of each
    string.
    """

    shape: tuple[int, ...]
    address: int
    byte_count: int
    ends_address: int | None
    owner: Any


def column_of(array: np.ndarray[Any, Any]) -> Column:
    """Makes a column from an array of numbers."""
    array = np.ascontiguousarray(array)
    return Column(array.shape, array.ctypes.data, array.nbytes, None, array)


@functools.cache
def open_reader() -> None:
    """Enables this process to read rows; the trainer and every worker of a data service need it.

    Raises:
        BuildError: If a shared library is missing or does not fit.
    """
    loaded = library.load()
    pointer, number = ctypes.c_void_p, ctypes.c_int
    loaded.tfdist_open_row_reader.argtypes = [_Function, number]
    loaded.tfdist_open_row_reader.restype = None
    loaded.tfdist_close_row_reader.argtypes = [ctypes.c_double]
    loaded.tfdist_close_row_reader.restype = number
    loaded.tfdist_read_is_wanted.argtypes = [pointer]
    loaded.tfdist_read_is_wanted.restype = number
    loaded.tfdist_give_column.argtypes = [
        *(pointer, number, ctypes.POINTER(_GivenColumn), ctypes.c_char_p, number),
    ]
    loaded.tfdist_give_column.restype = number
    loaded.tfdist_fail_read.argtypes = [pointer, number, ctypes.c_char_p]
    loaded.tfdist_fail_read.restype = None
    loaded.tfdist_open_row_reader(_serve, _THREADS)
    # No thread of the library may ask for the interpreter while it ends.
    exit_hook.register(loaded.tfdist_close_row_reader, _CLOSE_SECONDS)


@contextmanager
def closed() -> Iterator[None]:
    """Ends all reads of this process, and rejects new ones until the context is left.

    A worker's server must be stopped inside it: stopping waits for the worker's pipelines while holding the GIL, and a
    read waiting for the GIL would never end.

    Raises:
        StallError: If a read does not end.
    """
    open_reader()
    loaded = library.load()
    try:
        if not loaded.tfdist_close_row_reader(_CLOSE_SECONDS):
            raise StallError(
                f"A read of rows did not end within {_CLOSE_SECONDS} seconds, so the worker cannot be stopped. Check "
                "whether the storage of the files is still reachable, or end the process."
            )
        yield
    finally:
        loaded.tfdist_open_row_reader(_serve, _THREADS)


@_Function
def _serve(read: int, request: Any, size: int) -> None:
    loaded = library.load()
    try:
        parts = ctypes.string_at(request, size).split(b"\0")[:-1]
        columns = _read(parts)
        if loaded.tfdist_read_is_wanted(read):
            _give(loaded, read, columns)
    except FileNotFoundError as error:
        loaded.tfdist_fail_read(read, _NOT_FOUND, str(error).encode())
    except (ValueError, ImportError) as error:
        loaded.tfdist_fail_read(read, _INVALID_ARGUMENT, str(error).encode())
    except BaseException as error:  # noqa: BLE001  (the pipeline fails with it)
        loaded.tfdist_fail_read(read, _INTERNAL, f"{type(error).__name__}: {error}".encode())


def _read(parts: Sequence[bytes]) -> list[Column]:
    # pyarrow is only needed, and only then imported, where rows are read.
    if parts[0] == ROWS:
        from tfdist.data_service.source import parquet_file

        return parquet_file.read(parts[1:])
    from tfdist.data_service.source import store_file

    return store_file.read(parts)


def _give(loaded: ctypes.CDLL, read: int, columns: Sequence[Column]) -> None:
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    for index, column in enumerate(columns):
        shape = (ctypes.c_int64 * len(column.shape))(*column.shape)
        given = _GivenColumn(shape, len(column.shape), column.address, column.byte_count, column.ends_address)
        code = loaded.tfdist_give_column(read, index, given, message, _MESSAGE_BYTES)
        if code != 0:
            raise RuntimeError(message.value.decode(errors="replace"))
