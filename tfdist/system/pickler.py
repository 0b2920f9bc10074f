"""Pickles Python objects, including functions and classes that cannot be imported elsewhere."""

from __future__ import annotations

import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import cloudpickle


def dumps(value: Any) -> bytes:
    """The pickled value, with the code of what its reader may be unable to import: from the script, lambdas, ..."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps_by_name(value: Any) -> bytes:
    """The pickled value for a process of the same script, with classes by name; with their code if that fails."""
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
    """cloudpickle's pickler, but code objects keep their file name.

    Since cloudpickle 3.1.3 they do not by default: tracebacks then lack source lines, and TensorFlow's AutoGraph, which
    reads the source, does not convert a function's `if` and `while`.
    """

    dispatch_table: ClassVar = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)
