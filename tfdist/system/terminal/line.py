"""Splits a rank's output into lines and adds prefixes. It reads no file and no clock.

Ranks write at the same time, so only whole lines may be merged. Two things are not whole lines but must be shown soon:
a prompt without a newline, and a progress bar that rewrites its line after a carriage return.
"""

from __future__ import annotations

from dataclasses import dataclass

IDLE_S = 0.2
# If the output so far exactly fills buffers (C: 4096, Python: 8192), the rest of the line is in the next one, which is
# delayed because the program computes, or the machine is busy.
BUFFER_BYTES = 4096
BUFFER_IDLE_S = 5.0
PROGRESS_S = 1.0
LINE_LIMIT_BYTES = 1 << 16

LINE, PARTIAL, PROGRESS = "line", "partial", "progress"


@dataclass(frozen=True)
class Piece:
    """Output to be written: whole lines (joined by newlines), part of a line, or the newest state of a progress bar."""

    text: bytes
    end: str

    @property
    def size(self) -> int:
        """How much of its rank's window it uses; never 0."""
        return len(self.text) + 1


class LineSplitter:
    """Splits one stream of one rank into pieces. The caller passes the time; `due` says when to call `flush`."""

    def __init__(self) -> None:
        self._open = b""
        self._progress = False
        self._shown = False
        self._since = 0.0
        self._flushed = float("-inf")
        self._bytes = 0

    def feed(self, data: bytes, now: float) -> list[Piece]:
        self._bytes += len(data)
        whole, newline, rest = data.rpartition(b"\n")
        pieces = []
        if newline:
            lines = [_newest_state(line) for line in (self._open + whole).split(b"\n")]
            if self._shown and not lines[0]:
                # This newline only ends a progress bar that was already written as a line of its own.
                del lines[0]
            if lines:
                pieces.append(Piece(b"\n".join(lines), LINE))
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

    def resume(self, now: float) -> None:
        """Reading resumed after we had paused it: until now the delay was ours, not the rank's."""
        self._since = now

    def due(self) -> float | None:
        """When to show an unfinished line; None if there is none."""
        if not self._open:
            return None
        if self._progress:
            return max(min(self._since + IDLE_S, self._flushed + PROGRESS_S), self._flushed + IDLE_S)
        return self._since + (IDLE_S if self._bytes % BUFFER_BYTES else BUFFER_IDLE_S)

    def flush(self, now: float) -> list[Piece]:
        """The unfinished line, as it is."""
        if not self._open:
            return []
        text = self._open.rstrip(b"\r")
        piece = Piece(text, PROGRESS if self._progress else PARTIAL)
        self._open, self._flushed = b"", now
        self._shown, self._progress = self._progress, False
        return [piece] if text else []


def _newest_state(line: bytes) -> bytes:
    """What a terminal would show for a line with carriage returns, assuming each state is drawn in full."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class PrefixWriter:
    """Renders pieces of all ranks for one output: each line starts with its rank, and no rank splits another's."""

    def __init__(self) -> None:
        self._open: tuple[int, str] | None = None

    def render(self, source: tuple[int, str], piece: Piece, stamp: str = "") -> bytes:
        """The bytes to write for a piece of `source` (rank, stream); `stamp` goes before the rank."""
        prefix = f"{stamp}[{source[0]}] ".encode()
        lines = piece.text.split(b"\n") if piece.end == LINE else [piece.text]
        if self._open == source and piece.end != PROGRESS:
            # The rest of a line whose beginning was already written.
            out = lines.pop(0) + (b"\n" if lines else b"")
        else:
            out = self.close()
        out += b"\n".join(prefix + line for line in lines)
        self._open = source if piece.end == PARTIAL else None
        return out if self._open else out + b"\n"

    def close(self) -> bytes:
        """The bytes that end the last line, before something else is written."""
        was_open, self._open = self._open, None
        return b"\n" if was_open is not None else b""
