"""Tests of tfdist.launch.function.parcel: there and back, what is cut off, and what cannot be pickled."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from typing import Any

import numpy as np
import pytest

from tfdist.errors import ConfigError
from tfdist.launch.function import parcel
from tfdist.launch.function.parcel import Failed, Returned
from tfdist.launch.wire.call import FAILED, RETURNED


class Doubled(Exception):
    """Comes back from a pickle with another text."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


class TwoArguments(Exception):
    """Cannot be made again from its one argument."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


class Mute(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("not this either")


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def _failed(how: str, error: BaseException, **words: str) -> Failed:
    answer = parcel.unpack_answer(b"".join(parcel.pack_failure(how, _raised(error), **words)))
    assert isinstance(answer, Failed)
    return answer


def test_call_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/somewhere", *sys.path])
    base = 100
    sent = parcel.unpack_call(parcel.pack_call(lambda x, y: base + x * y, [3], {"y": 7}))
    function, args, kwargs = sent.load()
    assert function(*args, **kwargs) == 121
    assert sent.path[:2] == (os.getcwd(), "/somewhere")
    assert (sent.executable, sent.python) == (sys.executable, parcel.python_version())


def test_code_knows_its_file() -> None:
    """So tracebacks have lines of the source, and AutoGraph finds it."""

    def outer() -> Any:
        return lambda: inspect.getsource(outer)

    function, _, _ = parcel.unpack_call(parcel.pack_call(outer, [], {})).load()
    for code in (function.__code__, function().__code__):
        assert code.co_filename == __file__
    assert inspect.getsource(function) == inspect.getsource(outer) == function()()


@pytest.mark.parametrize("bad", [threading.Lock(), (n for n in range(2))])
def test_call_that_cannot_be_pickled(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"print and its arguments cannot be pickled: TypeError: .* pass a path"):
        parcel.pack_call(print, (bad,), {})
    with pytest.raises(ConfigError, match=r"<lambda> and its arguments cannot be pickled"):
        parcel.pack_call(lambda: bad, (), {})


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "LIMIT_BYTES", 10_000)
    parcel.pack_call(print, (bytes(1_000),), {})
    with pytest.raises(ConfigError, match="at most 10000 can be sent"):
        parcel.pack_call(print, (bytes(10_000),), {})
    parcel.pack_result(bytes(9_000))
    with pytest.raises(ValueError, match="at most 10000 can be sent"):
        parcel.pack_result(bytes(10_000))
    assert _failed(parcel.RAISED, ValueError(bytes(6_000))).payload == b""


def test_result_there_and_back() -> None:
    array = np.arange(5) ** 3
    answer = parcel.unpack_answer(b"".join(parcel.pack_result({"a": array})))
    assert isinstance(answer, Returned)
    assert answer.load()["a"].tolist() == array.tolist()


def test_cut_off_anywhere_is_no_answer() -> None:
    for pieces in (parcel.pack_result([1, 2]), parcel.pack_failure(parcel.RAISED, ValueError("x"))):
        whole = b"".join(pieces)
        assert parcel.unpack_answer(whole) is not None
        assert all(parcel.unpack_answer(whole[:end]) is None for end in range(len(whole)))
        assert parcel.unpack_answer(whole + b"x") is None
        assert parcel.unpack_answer(b"x" + whole[1:]) is None


def test_first_byte_is_what_the_supervisor_looks_at() -> None:
    assert parcel.pack_result(1)[0].startswith(RETURNED)
    assert parcel.pack_failure(parcel.EXITED, SystemExit(1))[0].startswith(FAILED)


def test_failure_there_and_back() -> None:
    failed = _failed(parcel.RAISED, KeyError("lost"))
    assert (failed.how, failed.kind, failed.text) == (parcel.RAISED, "KeyError", "'lost'")
    assert "in _raised\n    raise error" in failed.trace
    error = failed.load()
    assert type(error) is KeyError
    assert error.args == ("lost",)


@pytest.mark.parametrize("error", [Doubled("pen"), TwoArguments(1, 2), ValueError(threading.Lock())])
def test_exception_that_cannot_be_carried_leaves_its_text(error: Exception) -> None:
    failed = _failed(parcel.RAISED, error)
    assert failed.load() is None
    assert failed.kind == type(error).__name__
    assert failed.kind in failed.trace
    assert failed.text == str(error)


def test_exception_that_cannot_be_shown() -> None:
    failed = _failed(parcel.RAISED, Mute())
    assert failed.text == "(cannot be shown)"
    assert "Mute" in failed.trace
    assert isinstance(failed.load(), Mute)


def test_only_ordinary_exceptions_of_the_function_are_carried() -> None:
    assert _failed(parcel.RAISED, KeyboardInterrupt()).load() is None
    assert _failed(parcel.UNLOADABLE, ValueError("x")).payload == b""
    assert _failed(parcel.UNSENDABLE, ValueError("x"), kind="list").kind == "list"
    assert _failed(parcel.EXITED, SystemExit(), text="None").text == "None"


def test_exception_of_an_unknown_type() -> None:
    known = b"".join(parcel.pack_failure(parcel.RAISED, ConfigError("x")))
    answer = parcel.unpack_answer(known.replace(b"tfdist.errors", b"tfdist.no_one"))
    assert isinstance(answer, Failed)
    assert answer.load() is None


def test_name() -> None:
    assert parcel.name_of(test_name) == "test_name"
    assert parcel.name_of(Mute()) == repr(Mute())
