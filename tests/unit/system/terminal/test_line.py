"""Tests of tfdist.system.terminal.line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfdist.system.terminal.line import (
    BUFFER_BYTES,
    BUFFER_IDLE_S,
    FINAL,
    IDLE_S,
    LINE,
    LINE_LIMIT_BYTES,
    PARTIAL,
    PROGRESS,
    REDRAW_S,
    LineSplitter,
    Piece,
    PrefixWriter,
)


def test_whole_lines_at_once_the_rest_when_idle() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb\nc", 1.0) == [Piece(b"a\nb", LINE)]
    assert splitter.due() == 1.0 + IDLE_S
    assert splitter.flush(1.3) == [Piece(b"c", PARTIAL)]
    assert splitter.due() is None
    assert splitter.feed(b"d\n", 2.0) == [Piece(b"d", LINE)]


def test_a_line_cut_by_a_full_buffer_is_waited_for_longer() -> None:
    splitter = LineSplitter()
    splitter.feed(b"x\n" * (BUFFER_BYTES // 2 - 1) + b"y", 1.0)
    assert splitter.due() == 1.0 + IDLE_S
    splitter.feed(b"y", 1.0)
    assert splitter.due() == 1.0 + BUFFER_IDLE_S
    assert splitter.feed(b"y\n", 3.0) == [Piece(b"yyy", LINE)]


def test_pause_of_ours_is_not_counted() -> None:
    splitter = LineSplitter()
    splitter.feed(b"a", 1.0)
    splitter.resume(5.0)
    assert splitter.due() == 5.0 + IDLE_S


def test_windows_line_ends() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\r\nb\r", 0.0) == [Piece(b"a", LINE)]
    assert splitter.feed(b"\n", 0.0) == [Piece(b"b", LINE)]


def test_only_the_newest_state_of_a_bar() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r1%", 0.0) == []
    assert splitter.flush(0.0) == [Piece(b"1%", PROGRESS)]
    for percent in range(2, 50):
        assert splitter.feed(b"\r%d%%" % percent, percent / 100) == []
    due = splitter.due()
    assert due is not None
    assert 0.2 <= due <= 1.0
    assert splitter.flush(due) == [Piece(b"49%", PROGRESS)]
    assert splitter.feed(b"\n", 1.2) == [Piece(b"", FINAL)]
    assert splitter.feed(b"\r50%\r100%\n", 1.3) == [Piece(b"100%", FINAL)]


def test_bar_among_lines() -> None:
    """As Keras draws it: backspaces, a carriage return, the state."""
    splitter = LineSplitter()
    assert splitter.feed(b"Epoch 1\n\r1/9", 0.0) == [Piece(b"Epoch 1", LINE)]
    assert splitter.flush(0.2) == [Piece(b"1/9", PROGRESS)]
    ended = splitter.feed(b"\b\b\b\r2/9\b\b\b\r9/9\nEpoch 2\n\r1/9\b\b\b\r9/9\nend\n", 0.4)
    assert ended == [Piece(b"9/9", FINAL), Piece(b"Epoch 2", LINE), Piece(b"9/9", FINAL), Piece(b"end", LINE)]


def test_text_after_a_bar_is_a_line_of_its_own() -> None:
    splitter = LineSplitter()
    splitter.feed(b"\r1/9", 0.0)
    splitter.flush(0.2)
    assert splitter.feed(b"done\n", 0.3) == [Piece(b"", FINAL), Piece(b"done", LINE)]


def test_bar_that_nothing_ends() -> None:
    splitter = LineSplitter()
    splitter.feed(b"\r1/9\b\b\b", 0.0)
    assert splitter.close(0.1) == [Piece(b"1/9", PROGRESS), Piece(b"", FINAL)]
    assert splitter.close(0.2) == []


def test_bar_on_a_terminal_is_shown_more_often() -> None:
    splitter = LineSplitter()
    splitter.progress_s = REDRAW_S
    shown = []
    for step in range(100):
        now = step / 100
        splitter.feed(b"\r%d" % step, now)
        if (splitter.due() or 0) <= now:
            shown += splitter.flush(now)
    assert 8 <= len(shown) <= 10


def test_states_in_a_file_are_plain_lines() -> None:
    writer = PrefixWriter()
    out = writer.render((0, "stdout"), Piece(b"\x1b[1m1/9\x1b[0m \x1b[32mX\x1b[0m\x08", PROGRESS))
    out += writer.render((0, "stdout"), Piece(b"\x1b[1;31m9/9\x1b[0m", FINAL)) + writer.quote(b"ours\n")
    assert out + writer.render((0, "stdout"), Piece(b"", FINAL)) == b"[0] 1/9 X\n[0] 9/9\nours\n"
    coloured = b"\x1b[31mof the script\x1b[0m"
    assert writer.render((0, "stdout"), Piece(coloured, LINE)) == b"[0] " + coloured + b"\n"


def test_endless_line_is_bounded() -> None:
    pieces = LineSplitter().feed(b"x" * (LINE_LIMIT_BYTES + 1), 0.0)
    assert pieces == [Piece(b"x" * (LINE_LIMIT_BYTES + 1), PARTIAL)]


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\r", b"-"))))
def test_nothing_is_lost(chunks: list[bytes]) -> None:
    splitter, out = LineSplitter(), b""
    for number, chunk in enumerate(chunks):
        pieces = splitter.feed(chunk, float(number)) + (splitter.flush(float(number)) if number % 2 else [])
        out += b"".join(piece.text + (b"\n" if piece.end == LINE else b"") for piece in pieces)
    out += b"".join(piece.text for piece in splitter.flush(0.0))
    assert out == b"".join(chunks)


def test_prefix() -> None:
    writer = PrefixWriter()
    assert writer.render((1, "stdout"), Piece(b"a\n\nb", LINE)) == b"[1] a\n[1] \n[1] b\n"
    assert writer.render((0, "stdout"), Piece(b"a", LINE), "12:00 ") == b"12:00 [0] a\n"


def test_prefix_of_a_continued_line() -> None:
    writer = PrefixWriter()
    out = writer.render((0, "stdout"), Piece(b"name? ", PARTIAL))
    out += writer.render((0, "stdout"), Piece(b"bob\nnext", LINE))
    assert out == b"[0] name? bob\n[0] next\n"


def test_prefix_of_an_interrupted_line() -> None:
    writer = PrefixWriter()
    out = writer.render((0, "stdout"), Piece(b"name? ", PARTIAL))
    out += writer.render((1, "stdout"), Piece(b"hi", LINE))
    out += writer.render((0, "stdout"), Piece(b"bob", PARTIAL))
    out += writer.render((0, "stderr"), Piece(b"50%", PROGRESS))
    assert out == b"[0] name? \n[1] hi\n[0] bob\n[0] 50%\n"
    assert writer.close() == b""
    writer.render((0, "stdout"), Piece(b"x", PARTIAL))
    assert writer.close() == b"\n"
