"""Tests of tfdist.launch.wire.call: both ends against each other, without a socket."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.wire import call
from tfdist.launch.wire.call import FAILED, LIMIT_BYTES, PART_BYTES, RETURNED, Call, Errand, anonymous_file, write_all
from tfdist.launch.wire.record import RefusedFrameError
from tfdist.system import process

# Three parts, the last of them short.
DATA = bytes(range(256)) * (PART_BYTES // 128) + b"the end"


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The anonymous files that a test makes, closed after it."""
    made: list[int] = []

    def make() -> int:
        made.append(anonymous_file())
        return made[-1]

    monkeypatch.setattr(call, "anonymous_file", make)
    yield made
    for descriptor in made:
        with contextlib.suppress(OSError):  # the launcher has closed it
            os.close(descriptor)


@pytest.fixture
def launcher(descriptors: list[int]) -> Call:
    write_all(call.anonymous_file(), DATA)
    return Call(descriptors[0])


class Wire:
    """Takes the place of the channel: answers what a supervisor sends, until it is cut."""

    def __init__(self, launcher: Call, rank: int = 1) -> None:
        self.launcher, self.rank = launcher, rank
        self.sent: list[str] = []
        self.waiting: list[int] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append(kind)
        if kind == "fetch":
            self.waiting.append(fields["offset"])
        elif kind == "result":
            self.launcher.keep(self.rank, fields["data"])

    def deliver(self, errand: Errand) -> None:
        while self.waiting:
            errand.add(self.launcher.part(self.waiting.pop()))


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _far(launcher: Call, **changed: Any) -> dict[str, Any]:
    return {**launcher.offer(1), "machine": "another one", **changed}


@pytest.mark.usefixtures("descriptors")
def test_to_another_machine_it_travels_in_parts(launcher: Call) -> None:
    wire = Wire(launcher)
    errand = Errand(_far(launcher), wire.send)
    assert not errand.ready
    wire.deliver(errand)
    assert errand.ready
    assert wire.sent == ["fetch"] * 3
    assert _content(errand.function) == DATA


def test_on_the_same_machine_nothing_is_sent(launcher: Call, descriptors: list[int]) -> None:
    wire = Wire(launcher)
    errand = Errand(launcher.offer(1), wire.send)
    assert errand.ready
    assert os.path.sameopenfile(errand.function, descriptors[0])
    errand.take(RETURNED + b"abc")
    errand.take(b"def")
    assert wire.sent == []
    assert _content(descriptors[1]) == b"rabcdef"
    os.close(errand.function)


@pytest.mark.usefixtures("descriptors")
def test_where_proc_cannot_be_read_it_travels_in_parts(launcher: Call, tmp_path: Path) -> None:
    wire = Wire(launcher)
    errand = Errand({**launcher.offer(1), "source": str(tmp_path / "no"), "sink": str(tmp_path / "no")}, wire.send)
    wire.deliver(errand)
    errand.take(RETURNED)
    assert wire.sent == ["fetch"] * 3 + ["result"]


def test_machine_that_is_not_known_is_not_the_same(tmp_path: Path, launcher: Call, monkeypatch: Any) -> None:
    assert process.machine(tmp_path) == ""
    assert process.machine() == process.machine() != ""
    monkeypatch.setattr(process, "machine", lambda: "")
    assert not Errand(launcher.offer(1), Wire(launcher).send).ready


def test_result_in_parts(launcher: Call, descriptors: list[int]) -> None:
    wire = Wire(launcher)
    errand = Errand(_far(launcher), wire.send)
    wire.sent.clear()
    assert not errand.answered
    errand.take(RETURNED + b"abc")
    errand.take(FAILED)
    assert errand.answered
    assert wire.sent == ["result"] * 2
    assert _content(descriptors[1]) == b"rabcf"


def test_results_are_handed_over_by_rank(launcher: Call) -> None:
    for rank, data in ((3, RETURNED + b"three"), (0, DATA), (1, b"")):
        Errand(launcher.offer(rank), Wire(launcher).send).take(data)
    Errand(launcher.offer(3), Wire(launcher).send).take(RETURNED + b"anew")  # as where all ranks start again
    into = os.memfd_create("all")
    try:
        assert launcher.hand_over(into) == [(0, len(DATA)), (1, 0), (3, 5)]
        assert _content(into) == DATA + RETURNED + b"anew"
        assert launcher.hand_over(into) == []
    finally:
        os.close(into)


def test_too_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call.resource, "getrlimit", lambda _: (1024, 4096))
    call.check_files(480)
    with pytest.raises(ConfigError, match="this many ranks need 1026 open files, but this process may have only 1024"):
        call.check_files(481)


def test_failure_is_told_once_and_before_its_text(launcher: Call) -> None:
    wire = Wire(launcher)
    errand = Errand(_far(launcher), wire.send)
    errand.take(FAILED + b"why")
    errand.fail()
    assert wire.sent == ["fetch", "failing", "result"]


def test_what_exceeds_the_limit_is_dropped(launcher: Call, descriptors: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr(call, "LIMIT_BYTES", len(DATA))
    errand = Errand(_far(launcher), Wire(launcher).send)
    for count in (PART_BYTES, len(DATA) - PART_BYTES - 7, 7):
        errand.take(RETURNED * count)
    errand.take(b"more")
    assert _content(descriptors[1]) == RETURNED * len(DATA)


@pytest.mark.usefixtures("descriptors")
class TestRefused:
    @pytest.mark.parametrize("size", [0, -1, LIMIT_BYTES + 1])
    def test_size_that_cannot_be_meant(self, launcher: Call, size: int) -> None:
        with pytest.raises(RefusedFrameError, match=f"a function of {size} bytes"):
            Errand(_far(launcher, size=size), Wire(launcher).send)

    def test_other_bytes_than_announced(self, launcher: Call) -> None:
        with pytest.raises(RefusedFrameError, match="not those that were announced"):
            Errand({**launcher.offer(1), "digest": "0" * 64}, Wire(launcher).send)
        wire = Wire(launcher)
        with pytest.raises(RefusedFrameError, match="not those that were announced"):
            wire.deliver(Errand(_far(launcher, digest="0" * 64), wire.send))

    def test_other_length_than_announced(self, launcher: Call) -> None:
        with pytest.raises(RefusedFrameError, match="not those that were announced"):
            Errand({**launcher.offer(1), "size": len(DATA) - 1}, Wire(launcher).send)

    def test_more_than_announced(self, launcher: Call) -> None:
        errand = Errand(_far(launcher, size=10), Wire(launcher).send)
        with pytest.raises(RefusedFrameError, match="more of the function"):
            errand.add(base64.b64encode(bytes(11)).decode())

    @pytest.mark.parametrize("text", ["", "*", "eA", "é", base64.b64encode(bytes(PART_BYTES + 1)).decode()])
    def test_part_that_is_none(self, launcher: Call, text: str) -> None:
        with pytest.raises(RefusedFrameError, match="a part"):
            Errand(_far(launcher), Wire(launcher).send).add(text)
        with pytest.raises(RefusedFrameError, match="a part"):
            launcher.keep(1, text)

    def test_result_that_never_ends(self, launcher: Call, monkeypatch: Any) -> None:
        monkeypatch.setattr(call, "LIMIT_BYTES", 20)
        part = base64.b64encode(bytes(10)).decode()
        launcher.offer(0)
        launcher.offer(1)
        for _ in range(2):
            launcher.keep(1, part)
        launcher.keep(0, part)
        with pytest.raises(RefusedFrameError, match="a result of more than 20 bytes"):
            launcher.keep(1, part)

    @pytest.mark.parametrize("offset", [-1, len(DATA), 1 << 62])
    def test_part_that_is_not_there(self, launcher: Call, offset: int) -> None:
        assert launcher.part(offset) == ""
        with pytest.raises(RefusedFrameError):
            Errand(_far(launcher), Wire(launcher).send).add(launcher.part(offset))


def test_file_has_no_name_even_on_an_old_c_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(call.tempfile, "tempdir", str(tmp_path))
    descriptor = anonymous_file()
    try:
        assert list(tmp_path.iterdir()) == []
        assert not os.get_inheritable(descriptor)
        write_all(descriptor, b"abc")
        again = os.open(f"/proc/{os.getpid()}/fd/{descriptor}", os.O_RDONLY)
        assert _content(again) == b"abc"
        os.close(again)
    finally:
        os.close(descriptor)
