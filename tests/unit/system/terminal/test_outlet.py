"""Tests of tfdist.system.terminal.outlet with pipes and terminals whose readers are slow, stand still or go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfdist.system.terminal.outlet import Outlet

LINES = b"".join(b"%06d %s\n" % (number, b"x" * 92) for number in range(5000))


class Pipe:
    """An outlet into a pipe, and what it has told."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.done: list[tuple[int, int]] = []
        self.gone = 0
        self.outlet = Outlet(self.writer, lambda owner, size: self.done.append((owner, size)), self._note)

    def _note(self) -> None:
        self.gone += 1

    def close(self, end: str) -> None:
        descriptor = getattr(self, end)
        if descriptor >= 0:
            os.close(descriptor)
            setattr(self, end, -1)

    def read_all(self) -> bytes:
        data = b""
        while more := os.read(self.reader, 1 << 16):
            data += more
        return data


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close("reader")
    made.close("writer")


def test_nobody_waits_for_a_slow_reader_and_nothing_is_lost(pipe: Pipe) -> None:
    """The pipe holds a seventh of it."""
    for start in range(0, len(LINES), 10_000):
        pipe.outlet.put(LINES[start : start + 10_000], owner=start // 10_000, size=start)
    assert pipe.done == [(number, 10_000 * number) for number in range(6)], "the rest waits"
    got: list[bytes] = []
    reading = threading.Thread(target=lambda: got.append(pipe.read_all()))
    reading.start()
    pipe.outlet.hurry(5.0)
    pipe.outlet.finish()
    pipe.close("writer")
    reading.join(10)
    assert got == [LINES]
    assert pipe.done == [(number, 10_000 * number) for number in range(50)]
    assert pipe.outlet.dropped_bytes == 0


def test_reader_of_a_few_bytes_is_slow_but_reads(pipe: Pipe) -> None:
    """A pipe can be written again only when a page of it is free; until then the reader has not stood still."""
    for _ in range(2):
        pipe.outlet.put(LINES[:60_000])
    pipe.outlet.hurry(0.6)
    for _ in range(6):
        threading.Event().wait(0.3)
        os.read(pipe.reader, 50)
    assert pipe.outlet.dropped_bytes == 0
    pipe.outlet.finish()
    assert 0 < pipe.outlet.dropped_bytes < 60_000


def test_reader_that_stands_still_is_given_up(pipe: Pipe, wait_until: Callable[..., None]) -> None:
    pipe.outlet.put(LINES, owner=1, size=3)
    pipe.outlet.put(LINES, owner=2, size=4)
    assert pipe.done == []
    begin = time.monotonic()
    pipe.outlet.hurry(0.3)
    wait_until(lambda: pipe.done == [(1, 3), (2, 4)], what="the end of both")
    assert time.monotonic() - begin < 2
    pipe.outlet.put(b"late", owner=3, size=5)
    assert pipe.done[2:] == [(3, 5)]
    kept = len(LINES) * 2 + 4 - pipe.outlet.dropped_bytes
    assert os.read(pipe.reader, 1 << 20) == LINES[:kept]
    pipe.outlet.calm()
    pipe.outlet.put(b"again")
    assert os.read(pipe.reader, 100) == b"again"


def test_reader_that_has_gone(pipe: Pipe) -> None:
    pipe.outlet.put(LINES, owner=1, size=3)
    pipe.close("reader")
    for owner in (2, 3):
        pipe.outlet.put(b"more", owner=owner, size=owner)
    pipe.outlet.hurry(5.0)
    pipe.outlet.finish()
    assert pipe.done == [(1, 3), (2, 2), (3, 3)]
    assert pipe.gone == 1
    assert pipe.outlet.dropped_bytes == 0


def test_terminal_that_is_stopped() -> None:
    """By Ctrl-S, for one. The mode of a descriptor that others share stays as it is."""
    master, terminal = os.openpty()
    outlet = Outlet(terminal, lambda owner, size: None)
    outlet.put(LINES)
    assert os.get_blocking(terminal)
    begin = time.monotonic()
    outlet.hurry(0.3)
    outlet.finish()
    assert time.monotonic() - begin < 2
    assert outlet.dropped_bytes > 0
    for descriptor in (master, terminal):
        os.close(descriptor)


def test_file(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    outlet = Outlet(descriptor, lambda owner, size: None)
    outlet.put(LINES)
    outlet.hurry(1.0)
    outlet.finish()
    os.close(descriptor)
    assert (tmp_path / "out").read_bytes() == LINES
