"""Renders output for a terminal: colours, and of all ranks a progress bar that is redrawn in the last line."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping

from tfdist.system.terminal.line import FINAL, PARTIAL, PROGRESS, Piece, PrefixWriter, plain

_ERASE_REST = b"\x1b[K"
_RESET = "\x1b[0m"
# The numbers of colours: bold red, yellow; those of ranks repeat.
ERROR, WARNING = "1;31", "33"
_OF_RANKS = ("36", "32", "35", "34", "96", "92", "95", "94")
_SEQUENCE = re.compile(r"(\x1b\[[0-?]*[ -/]*[@-~])")


def is_screen(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Whether a descriptor is that of a terminal on which a line can be drawn again."""
    return os.isatty(descriptor) and environment.get("TERM", "dumb") != "dumb"


def has_colours(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Whether colours are used there; NO_COLOR turns them off (no-color.org)."""
    return is_screen(descriptor, environment) and not environment.get("NO_COLOR")


def labelled(text: str, colour: str, descriptor: int = 2) -> str:
    """A message whose label, such as "tfdistrun:", has a colour if the descriptor is a terminal's."""
    label, colon, rest = text.partition(": ")
    if not colon or not has_colours(descriptor, os.environ):
        return text
    return f"\x1b[{colour}m{label}:{_RESET} {rest}"


class ScreenWriter(PrefixWriter):
    """Of several bars the one of the lowest rank is drawn.

    Args:
        columns: Returns the width of the terminal: a bar that needs two lines could not be drawn again, so it is cut.
        colours: Whether to use colours.
    """

    def __init__(self, columns: Callable[[], int], colours: bool = False) -> None:
        super().__init__()
        self._columns, self._colours = columns, colours
        # The states of the bars that have not ended.
        self._bars: dict[tuple[int, str], bytes] = {}
        self._drawn = False

    def render(self, source: tuple[int, str], piece: Piece, stamp: str = "") -> bytes:
        if piece.end == PROGRESS:
            self._bars[source] = self._bar(source, piece, stamp)
            return self._end_line() + self._draw()
        out = self._erase()
        if piece.end == FINAL:
            newest = self._bars.pop(source, b"")
            line = self._bar(source, piece, stamp) if piece.text else newest
            out += self._end_line() + (line + b"\n" if line else b"")
        else:
            out += super().render(source, piece, stamp)
        # The rest of the partial line may come yet.
        return out if piece.end == PARTIAL else out + self._draw()

    def close(self) -> bytes:
        """Leaves the bar that is drawn as the last line."""
        drawn, self._drawn = self._drawn, False
        self._bars.clear()
        return b"\n" if drawn else self._end_line()

    def quote(self, text: bytes) -> bytes:
        return self._erase() + self._end_line() + text + self._draw()

    def _prefix(self, rank: int, stamp: str) -> bytes:
        if not self._colours:
            return super()._prefix(rank, stamp)
        return f"{stamp}\x1b[{_OF_RANKS[rank % len(_OF_RANKS)]}m[{rank}]{_RESET} ".encode()

    def _bar(self, source: tuple[int, str], piece: Piece, stamp: str) -> bytes:
        return self._prefix(source[0], stamp) + (piece.text if self._colours else plain(piece.text))

    def _draw(self) -> bytes:
        if not self._bars or self._open is not None:
            return b""
        self._drawn = True
        return b"\r" + fitting(self._bars[min(self._bars)], self._columns() - 1) + _ERASE_REST

    def _erase(self) -> bytes:
        drawn, self._drawn = self._drawn, False
        return b"\r" + _ERASE_REST if drawn else b""


def fitting(line: bytes, columns: int) -> bytes:
    """The beginning of a line that is at most so many columns wide, with all its escape sequences."""
    parts = []
    for part in _SEQUENCE.split(line.decode(errors="replace")):
        if _SEQUENCE.fullmatch(part):
            parts.append(part)
            continue
        for character in part:
            width = 0 if unicodedata.combining(character) or not character.isprintable() else _width(character)
            if width > columns:
                return ("".join(parts) + _RESET).encode()
            columns -= width
            if width:
                parts.append(character)
    return "".join(parts).encode()


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
