"""Splits a rank's output into lines and adds prefixes. It reads no file and no clock.

Ranks write at the same time, so only whole lines may be merged. Two things are not whole lines but must be shown soon:
a prompt without a newline, and a progress bar that rewrites its line after a carriage return.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

IDLE_S = 0.2
# If the output so far exactly fills buffers (C: 4096, Python: 8192), the rest of the line is in the next one, which is
# delayed because the program computes, or the machine is busy.
BUFFER_BYTES = 4096
BUFFER_IDLE_S = 5.0
PROGRESS_S = 1.0
# The same for a terminal, where the states replace each other.
REDRAW_S = 0.1
LINE_LIMIT_BYTES = 1 << 16

LINE, PARTIAL, PROGRESS, FINAL = "line", "partial", "progress", "final"
# Escape sequences, such as those of colours, and backspaces.
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x08")


@dataclass(frozen=True)
class Piece:
    """Output to be written: whole lines (joined by newlines), part of a line, or a state of a progress bar.

    That is the newest one, or the final one, after which the line has ended; empty if the newest one was the final one.
    """

    text: bytes
    end: str

    @property
    def size(self) -> int:
        """How much of its rank's window it uses; never 0."""
        return len(self.text) + 1


class LineSplitter:
    """Splits one stream of one rank into pieces. The caller passes the time; `due` says when to call `flush`.

    Attributes:
        progress_s: How often a bar that is redrawn all the time is shown.
    """

    def __init__(self) -> None:
        self.progress_s = PROGRESS_S
        self._open = b""
        self._progress = False
        self._shown = False
        self._since = 0.0
        self._flushed = float("-inf")
        self._bytes = 0

    def feed(self, data: bytes, now: float) -> list[Piece]:
        self._bytes += len(data)
        whole, newline, rest = data.rpartition(b"\n")
        pieces: list[Piece] = []
        if newline:
            pieces = self._end((self._open + whole).split(b"\n"))
            self._open, self._progress, self._shown = b"", False, False
        if rest:
            self._open += rest
            self._since = now
            if b"\r" in self._open:
                # If a bar is redrawn a hundred times a second, only the newest state deserves a line.
                self._progress = True
                ended = self._open.endswith(b"\r")
                self._open = _newest_state(self._open) + (b"\r" if ended else b"")
            if len(self._open) > LINE_LIMIT_BYTES:
                pieces += self.flush(now)
        return pieces

    def _end(self, lines: list[bytes]) -> list[Piece]:
        """Pieces of lines that have ended; the first one may be that of a bar."""
        pieces = []
        first = lines[0]
        if self._shown or (self._progress and not first.endswith(b"\r")):
            if self._shown and first and b"\r" not in first and not self._progress:
                pieces.append(Piece(b"", FINAL))  # text after the bar, which does not replace it
            else:
                pieces.append(Piece(_newest_state(lines.pop(0)), FINAL))
        plain: list[bytes] = []
        for line in lines:
            if b"\r" in line.rstrip(b"\r"):
                pieces += [Piece(b"\n".join(plain), LINE)] if plain else []
                pieces.append(Piece(_newest_state(line), FINAL))
                plain = []
            else:
                plain.append(_newest_state(line))
        return pieces + ([Piece(b"\n".join(plain), LINE)] if plain else [])

    def resume(self, now: float) -> None:
        """Reading resumed after we had paused it: until now the delay was ours, not the rank's."""
        self._since = now

    def due(self) -> float | None:
        """When to show an unfinished line; None if there is none."""
        if not self._open:
            return None
        if self._progress:
            least_s = min(IDLE_S, self.progress_s)
            return max(min(self._since + least_s, self._flushed + self.progress_s), self._flushed + least_s)
        return self._since + (IDLE_S if self._bytes % BUFFER_BYTES else BUFFER_IDLE_S)

    def flush(self, now: float) -> list[Piece]:
        """The unfinished line, as it is."""
        if not self._open:
            return []
        text = self._open.rstrip(b"\r")
        if self._progress:
            text = text.rstrip(b"\b")
        piece = Piece(text, PROGRESS if self._progress else PARTIAL)
        self._open, self._flushed = b"", now
        self._shown, self._progress = self._progress, False
        return [piece] if text else []

    def close(self, now: float) -> list[Piece]:
        """The rest of the output, which ends here; a bar ends with it."""
        pieces = self.flush(now)
        ended, self._shown = self._shown, False
        return [*pieces, Piece(b"", FINAL)] if ended else pieces


def _newest_state(line: bytes) -> bytes:
    """What a terminal would show for a line with carriage returns, assuming each state is drawn in full."""
    return line.rstrip(b"\r\b").rpartition(b"\r")[2] if b"\r" in line else line


def plain(text: bytes) -> bytes:
    """The state of a bar for a file: without colours and backspaces."""
    return _CONTROL.sub(b"", text)


class PrefixWriter:
    """Renders pieces of all ranks for one output: each line starts with its rank, and no rank splits another's.

    For a file or a pipe: each state of a progress bar is a line.
    """

    def __init__(self) -> None:
        self._open: tuple[int, str] | None = None

    def render(self, source: tuple[int, str], piece: Piece, stamp: str = "") -> bytes:
        """The bytes to write for a piece of `source` (rank, stream); `stamp` goes before the rank."""
        if piece.end in (PROGRESS, FINAL):
            text = plain(piece.text)
            return self._end_line() + self._prefix(source[0], stamp) + text + b"\n" if text else b""
        lines = piece.text.split(b"\n") if piece.end == LINE else [piece.text]
        if self._open == source:
            # The rest of a line whose beginning was already written.
            out = lines.pop(0) + (b"\n" if lines else b"")
        else:
            out = self._end_line()
        out += b"\n".join(self._prefix(source[0], stamp) + line for line in lines)
        self._open = source if piece.end == PARTIAL else None
        return out if self._open else out + b"\n"

    def close(self) -> bytes:
        """The bytes that end the last line, after which nothing is written."""
        return self._end_line()

    def _end_line(self) -> bytes:
        """The bytes that end a partial line, before something else is written."""
        was_open, self._open = self._open, None
        return b"\n" if was_open is not None else b""

    def quote(self, text: bytes) -> bytes:
        """The bytes for whole lines that are no rank's."""
        return self._end_line() + text

    def _prefix(self, rank: int, stamp: str) -> bytes:
        """What each line of a rank begins with."""
        return f"{stamp}[{rank}] ".encode()
