"""Converts functions, results and failures to bytes and back: the only place that pickles for `tfdist.run`.

A parcel consists of a type (1 byte), the lengths of header (4) and payload (8, big-endian), a JSON header and a pickled
payload. A truncated parcel is detected without unpickling it.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.errors import ConfigError
from tfdist.launch.wire.call import FAILED, LIMIT_BYTES, RETURNED
from tfdist.system import pickler

_CALL = b"c"
_HEAD = struct.Struct("!cIQ")

# How a rank failed.
RAISED = "the function raised"
EXITED = "the function called sys.exit"
UNSENDABLE = "the result cannot be sent"
UNLOADABLE = "the function cannot be unpickled"


@dataclass(frozen=True)
class Function:
    """What a rank will call. `payload` is unpickled only after `sys.path` of the rank is set up."""

    python: str
    executable: str
    path: tuple[str, ...]
    payload: bytes

    def load(self) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """The function, its positional and its keyword arguments."""
        return pickle.loads(self.payload)  # noqa: S301  (from the launcher, by descriptor or authenticated frame)


@dataclass(frozen=True)
class Returned:
    """A rank's result."""

    payload: bytes

    def load(self) -> Any:
        """The result itself."""
        return pickle.loads(self.payload)  # noqa: S301  (from a rank of our own job, as above)


@dataclass(frozen=True)
class Failed:
    """Why a rank has no result.

    Attributes:
        how: One of the constants of this module.
        kind: Name of the exception's type, or of the result's.
        text: The exception's message; for `EXITED` the exit code.
        trace: The traceback as text.
        payload: The exception, pickled; empty if it cannot be pickled.
    """

    how: str
    kind: str
    text: str
    trace: str
    payload: bytes = b""

    def load(self) -> Exception | None:
        """The exception as it was raised; None if it cannot be restored here."""
        if not self.payload:
            return None
        try:
            error = pickle.loads(self.payload)  # noqa: S301  (from a rank of our own job, as above)
        except Exception:  # noqa: BLE001  (a type that is not importable here, or whose own code fails)
            return None
        return error if isinstance(error, Exception) else None


def pack_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The parcel with a function and its arguments. Raises ConfigError if they cannot be pickled or are too large."""
    try:
        payload = pickler.dumps((function, args, kwargs))
    except Exception as error:
        raise ConfigError(
            f"{name_of(function)} and its arguments cannot be pickled: {type(error).__name__}: {error}. Create "
            "objects that cannot be pickled (locks, generators, datasets) inside the function, or pass a path."
        ) from error
    header = {
        "python": python_version(),
        "executable": sys.executable,
        "path": [os.path.abspath(entry) for entry in sys.path],
    }
    whole = b"".join(_pack(_CALL, header, payload))
    if len(whole) > LIMIT_BYTES:
        raise ConfigError(
            f"{name_of(function)} and its arguments take {len(whole)} bytes, but at most {LIMIT_BYTES} can be sent. "
            "Write large data to files that every rank can read, and pass their paths."
        )
    return whole


def unpack_call(data: bytes) -> Function:
    """The function of a parcel of `pack_call`."""
    _, header, payload = _unpack(data)
    return Function(header["python"], header["executable"], tuple(header["path"]), payload)


def pack_result(value: Any) -> list[bytes]:
    """The pieces of the parcel with a result. Raises what pickling raises, or ValueError if it is too large."""
    payload = pickler.dumps(value)
    pieces = _pack(RETURNED, {}, payload)
    if (size := sum(map(len, pieces))) > LIMIT_BYTES:
        raise ValueError(f"it takes {size} bytes, but at most {LIMIT_BYTES} can be sent; write it to a file")
    return pieces


def pack_failure(how: str, error: BaseException, kind: str = "", text: str = "") -> list[bytes]:
    """The pieces of the parcel with a failure; `kind` and `text` are those of the error unless given."""
    failed = Failed(how, kind or type(error).__name__, text or _text(error), _trace(error))
    header = {"how": failed.how, "kind": failed.kind, "text": failed.text, "trace": failed.trace}
    return _pack(FAILED, header, _exception(error) if how == RAISED else b"")


def unpack_answer(data: bytes) -> Returned | Failed | None:
    """A rank's answer; None if there is none, or it was truncated."""
    if len(data) < _HEAD.size:
        return None
    flag, header_size, payload_size = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + header_size + payload_size or flag not in (RETURNED, FAILED):
        return None
    _, header, payload = _unpack(data)
    return Returned(payload) if flag == RETURNED else Failed(payload=payload, **header)


def name_of(function: Callable[..., Any]) -> str:
    """A function's name in messages."""
    return getattr(function, "__qualname__", None) or repr(function)


def python_version() -> str:
    """The version that must match for functions of one interpreter to run in another."""
    return "{}.{}".format(*sys.version_info)


def _pack(flag: bytes, header: dict[str, Any], payload: bytes) -> list[bytes]:
    text = json.dumps(header).encode("ascii")
    return [_HEAD.pack(flag, len(text), len(payload)) + text, payload]


def _unpack(data: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    flag, header_size, _ = _HEAD.unpack_from(data)
    end = _HEAD.size + header_size
    return flag, json.loads(data[_HEAD.size : end]), data[end:]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (its own __str__ fails)
        return "(cannot be shown)"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _exception(error: BaseException) -> bytes:
    """The pickled exception, if it can be restored: many exceptions cannot be re-created from their arguments."""
    try:
        payload = pickler.dumps(error)
        again = pickle.loads(payload)  # noqa: S301  (made in the line above)
    except Exception:  # noqa: BLE001  (then its text has to do)
        return b""
    same = type(again) is type(error) and _text(again) == _text(error)
    return payload if same and len(payload) < LIMIT_BYTES // 2 else b""
