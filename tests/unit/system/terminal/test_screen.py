"""Tests of tfdist.system.terminal.screen."""

from __future__ import annotations

import os

import pytest

from tfdist.system.terminal.line import FINAL, LINE, PARTIAL, PROGRESS, Piece
from tfdist.system.terminal.screen import ERROR, ScreenWriter, fitting, has_colours, is_screen, labelled

ZERO, ONE = (0, "stdout"), (1, "stdout")


class Screen:
    """What a terminal shows: a carriage return goes back, ESC [ K erases the rest of the line."""

    def __init__(self, columns: int = 40) -> None:
        self._writer = ScreenWriter(lambda: columns)
        self._written = b""

    def render(self, source: tuple[int, str], text: bytes, end: str) -> list[str]:
        return self._shown(self._writer.render(source, Piece(text, end)))

    def quote(self, text: bytes) -> list[str]:
        return self._shown(self._writer.quote(text))

    def close(self) -> list[str]:
        return self._shown(self._writer.close())

    def _shown(self, more: bytes) -> list[str]:
        self._written += more
        lines = []
        for line in self._written.decode().split("\n"):
            shown = ""
            for part in line.split("\r"):
                text, erase, after = part.partition("\x1b[K")
                shown = text + ("" if erase else shown[len(text) :]) + after
            lines.append(shown)
        return lines


def test_bar_is_drawn_again_in_its_line() -> None:
    screen = Screen()
    screen.render(ZERO, b"Epoch 1", LINE)
    assert screen.render(ZERO, b"10/20 - a long state", PROGRESS) == ["[0] Epoch 1", "[0] 10/20 - a long state"]
    assert screen.render(ZERO, b"11/20 - short", PROGRESS) == ["[0] Epoch 1", "[0] 11/20 - short"]
    assert screen.render(ZERO, b"20/20", FINAL) == ["[0] Epoch 1", "[0] 20/20", ""]
    screen.render(ZERO, b"1/20", PROGRESS)
    assert screen.render(ZERO, b"", FINAL) == ["[0] Epoch 1", "[0] 20/20", "[0] 1/20", ""]


def test_other_lines_are_above_the_bar() -> None:
    screen = Screen()
    screen.render(ZERO, b"1/9", PROGRESS)
    assert screen.render(ONE, b"a\nb", LINE) == ["[1] a", "[1] b", "[0] 1/9"]
    assert screen.quote(b"tfdistrun: note\n") == ["[1] a", "[1] b", "tfdistrun: note", "[0] 1/9"]
    assert screen.render(ONE, b"name? ", PARTIAL) == ["[1] a", "[1] b", "tfdistrun: note", "[1] name? "]
    assert screen.render(ONE, b"bob", LINE)[-2:] == ["[1] name? bob", "[0] 1/9"]
    screen.render(ONE, b"again? ", PARTIAL)
    assert screen.render(ZERO, b"2/9", PROGRESS)[-2:] == ["[1] again? ", "[0] 2/9"]
    assert screen.close()[-2:] == ["[0] 2/9", ""]


def test_bar_of_the_lowest_rank_is_drawn() -> None:
    screen = Screen()
    assert screen.render(ONE, b"1/9", PROGRESS) == ["[1] 1/9"]
    assert screen.render(ZERO, b"2/9", PROGRESS) == ["[0] 2/9"]
    assert screen.render(ONE, b"3/9", PROGRESS) == ["[0] 2/9"]
    assert screen.render(ONE, b"", FINAL) == ["[1] 3/9", "[0] 2/9"]
    screen.render(ONE, b"4/9", PROGRESS)
    assert screen.render(ZERO, b"9/9", FINAL) == ["[1] 3/9", "[0] 9/9", "[1] 4/9"]


def test_bar_needs_one_line() -> None:
    assert Screen(10).render(ZERO, b"0123456789", PROGRESS) == ["[0] 01234\x1b[0m"]
    green = "\x1b[32m\u2501\u2501\x1b[0m"
    assert fitting(f"{green} ab".encode(), 5) == f"{green} ab".encode()
    assert fitting(f"{green} ab".encode(), 4) == f"{green} a\x1b[0m".encode()
    assert fitting("\u6f22\u6f22".encode(), 3) == "\u6f22\x1b[0m".encode()
    assert fitting(b"a\tb\x07c", 9) == b"abc"


@pytest.mark.parametrize(("term", "drawn"), [("xterm-256color", True), ("dumb", False), (None, False)])
def test_terminals(term: str | None, drawn: bool) -> None:
    master, terminal = os.openpty()
    reader, writer = os.pipe()
    variables = {} if term is None else {"TERM": term}
    assert is_screen(terminal, variables) == drawn
    assert not is_screen(writer, variables)
    for descriptor in (master, terminal, reader, writer):
        os.close(descriptor)


def test_colours_of_ranks_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ScreenWriter(lambda: 80, colours=True)
    assert writer.render(ZERO, Piece(b"a\nb", LINE), "T ") == b"T \x1b[36m[0]\x1b[0m a\nT \x1b[36m[0]\x1b[0m b\n"
    assert writer.render(ONE, Piece(b"\x1b[1m9/9\x1b[0m", FINAL)) == b"\x1b[32m[1]\x1b[0m \x1b[1m9/9\x1b[0m\n"
    without = ScreenWriter(lambda: 80, colours=False)
    assert without.render(ONE, Piece(b"\x1b[1m1/9\x1b[0m", PROGRESS)) == b"\r[1] 1/9\x1b[K"
    master, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert labelled("tfdistrun: a: b", ERROR, terminal) == "\x1b[1;31mtfdistrun:\x1b[0m a: b"
    assert labelled("no label", ERROR, terminal) == "no label"
    monkeypatch.setenv("NO_COLOR", "1")
    assert labelled("tfdistrun: a: b", ERROR, terminal) == "tfdistrun: a: b"
    assert has_colours(terminal, {"TERM": "xterm", "NO_COLOR": ""}), "an empty one is not set"
    os.close(master)
    os.close(terminal)
