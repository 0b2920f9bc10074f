"""Tests of tfdist.launch.function.worker: the answer to a call, in this process; whole ranks are in tests/launch."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.function import parcel, worker
from tfdist.launch.function.parcel import Failed, Returned
from tfdist.launch.wire.call import anonymous_file, write_all


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["worker.py", "5", "6"])


def _call(function: Any, *args: Any) -> tuple[Returned | Failed | None, BaseException | None]:
    pieces, error = worker.call(parcel.pack_call(function, args, {}))
    return parcel.unpack_answer(b"".join(pieces)), error


def test_result() -> None:
    answer, error = _call(lambda x: x + 1, 4)
    assert isinstance(answer, Returned)
    assert (answer.load(), error) == (5, None)


@pytest.mark.parametrize(
    ("function", "how", "kind"),
    [
        (lambda: {}["x"], parcel.RAISED, "KeyError"),
        (lambda: sys.exit(3), parcel.EXITED, "SystemExit"),
        (lambda: (n for n in range(2)), parcel.UNSENDABLE, "generator"),
    ],
)
def test_failure(function: Any, how: str, kind: str) -> None:
    answer, error = _call(function)
    assert isinstance(answer, Failed)
    assert (answer.how, answer.kind) == (how, kind)
    assert error is not None


def test_traceback_begins_in_the_function() -> None:
    answer, error = _call(lambda: {}["x"])
    assert isinstance(answer, Failed)
    assert error is not None
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["<lambda>"]
    assert worker.__file__ not in answer.trace


def test_function_that_cannot_be_unpickled() -> None:
    data = parcel.pack_call(os.getcwd, (), {})
    pieces, error = worker.call(data.replace(b"getcwd", b"no_cwd"))
    answer = parcel.unpack_answer(b"".join(pieces))
    assert isinstance(answer, Failed)
    assert (answer.how, answer.kind) == (parcel.UNLOADABLE, "AttributeError")
    assert isinstance(error, AttributeError)


def test_other_version_of_python_is_not_tried() -> None:
    sent = replace(parcel.unpack_call(parcel.pack_call(os.getcwd, (), {})), python="3.9", payload=b"junk")
    with pytest.raises(ImportError, match=r"this rank runs Python 3\.\d+ .*, the caller 3\.9: .* executable="):
        worker.load(sent)


def test_callers_folders_come_first_with_same_interpreter() -> None:
    folder = str(Path(worker.__file__).parent)
    sent = parcel.Function("3", sys.executable, ("/a", "/b"), b"")
    assert worker.search_path(sent, [folder, "/b", "/c"]) == ["/a", "/b", "/c"]
    assert worker.search_path(replace(sent, executable="/other"), [folder, "/b", "/c"]) == ["/b", "/c", "/a"]


@pytest.mark.parametrize(("code", "seen"), [(0, 1), (None, 1), (3, 3), ("text", "text")])
def test_main_answers_and_then_fails(code: Any, seen: Any) -> None:
    function, (reader, writer) = anonymous_file(), os.pipe()
    write_all(function, parcel.pack_call(sys.exit, (code,), {}))
    with pytest.raises(SystemExit) as caught:
        worker.main(function, writer)
    with open(reader, "rb") as pipe:
        answer = parcel.unpack_answer(pipe.read())
    assert isinstance(answer, Failed)
    assert (answer.how, answer.text) == (parcel.EXITED, str(code))
    assert caught.value.code == seen
    assert sys.argv == ["worker.py"]
    for descriptor in (function, writer):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
