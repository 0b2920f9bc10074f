"""The program that each rank of `tfdist.run` runs: `python worker.py FUNCTION RESULT`. Internal.

Both arguments are numbers of descriptors that its supervisor opened. It does not initialise tfdist: the function does.
Started by path, because `-m` would let files in the working directory shadow Python's own modules.
"""

from __future__ import annotations

import os
import sys
from typing import Any

if not __package__:
    # At the end: this may not be the interpreter that tfdist is installed for.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.launch.function import parcel

_FOLDER = os.path.dirname(os.path.realpath(__file__))


def main(function: int, result: int) -> None:
    """Sends the function's result or failure; a failure also ends the process as it would end a script."""
    for descriptor in (function, result):
        os.set_inheritable(descriptor, False)
    del sys.argv[1:]
    os.lseek(function, 0, os.SEEK_SET)
    with open(function, "rb") as file:
        data = file.read()
    answer, error = call(data)
    with open(result, "wb") as pipe:
        pipe.writelines(answer)
    if isinstance(error, SystemExit) and error.code in (None, 0):
        raise SystemExit(1) from error  # without a result the rank has failed
    if error is not None:
        raise error


def call(data: bytes) -> tuple[list[bytes], BaseException | None]:
    """Unpickles and calls the function of a parcel; returns the answer as pieces of a parcel, and the error if any."""
    try:
        function, args, kwargs = load(parcel.unpack_call(data))
    except BaseException as error:  # noqa: BLE001  (main raises it again)
        return parcel.pack_failure(parcel.UNLOADABLE, error), error
    try:
        value: Any = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  (main raises it again)
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if isinstance(error, SystemExit):
            return parcel.pack_failure(parcel.EXITED, error, text=str(error.code)), error
        return parcel.pack_failure(parcel.RAISED, error), error
    try:
        return parcel.pack_result(value), None
    except Exception as error:  # noqa: BLE001  (main raises it again)
        return parcel.pack_failure(parcel.UNSENDABLE, error, kind=type(value).__qualname__), error


def load(sent: parcel.Function) -> tuple[Any, Any, Any]:
    """The function and its arguments, after setting `sys.path` to that of the caller."""
    if sent.python != parcel.python_version():
        raise ImportError(
            f"this rank runs Python {parcel.python_version()} ({sys.executable}), the caller {sent.python}: a function "
            "can only be sent to an interpreter of the same minor version. Choose one with executable=..."
        )
    sys.path[:] = search_path(sent, sys.path)
    return sent.load()


def search_path(sent: parcel.Function, own: list[str]) -> list[str]:
    """The caller's `sys.path` under the same interpreter, else this one's folders first; never this file's folder."""
    own = [entry for entry in own if os.path.realpath(entry) != _FOLDER]
    first, second = (sent.path, own) if sent.executable == sys.executable else (own, sent.path)
    return [*first, *(entry for entry in second if entry not in first)]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
