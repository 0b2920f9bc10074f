"""Any Python object as bytes, functions and classes that cannot be imported elsewhere too. It sends nothing."""

from __future__ import annotations

import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import cloudpickle


def dumps(value: Any) -> bytes:
    """The value, with the code of what its reader may be unable to import: of the script, lambdas, local classes."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps_by_name(value: Any) -> bytes:
    """The value for a process of the same script, which gets its own classes by name; with code where that fails."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  (a lambda, a local class; what cannot be pickled at all fails again)
        return dumps(value)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    made, arguments, *_ = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _code_of_file, (code.co_filename, made, arguments)


def _code_of_file(file: str, make: Callable[..., types.CodeType], arguments: Sequence[Any]) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, and code knows the file that it is from.

    Since 3.1.3 it does not by itself: tracebacks then have no lines of the source, and TensorFlow's AutoGraph, which
    reads it, leaves a function's `if` and `while` as they are.
    """

    dispatch_table: ClassVar = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)
