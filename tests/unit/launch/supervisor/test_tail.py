"""Tests of tfdist.launch.supervisor.tail."""

from __future__ import annotations

from tfdist.launch.supervisor import tail


def test_tail() -> None:
    assert tail.lines(b"") == []
    assert tail.lines(b"\n \n") == []
    assert tail.lines(b"1%\r2%\r\na\n") == ["2%", "a"]
    assert tail.lines(b"\xff" + b"x\n" * 99) == ["x"] * tail.LINES


def test_tail_leaves_out_what_every_process_of_tensorflow_says() -> None:
    chatter = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    assert tail.lines(chatter + b"ValueError: no\n" + chatter) == ["ValueError: no"]
    assert tail.lines(chatter) == [], "so that another stream may tell"
