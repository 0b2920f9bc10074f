"""The last lines that a rank has printed, for the launcher's report."""

from __future__ import annotations

from tfdist.system.terminal.chatter import is_chatter

LINES = 40
# How much of a stream is kept for them.
BYTES = 1 << 14
_WIDTH = 1000


def lines(data: bytes) -> list[str]:
    """The last lines of a stream, as text that is safe on any terminal; empty if they contain nothing useful."""
    telling = b"\n".join(line for line in data.split(b"\n") if not is_chatter(line))
    last = telling.decode(errors="replace").strip("\n").split("\n")[-LINES:]
    shown = [line.rstrip("\r").rpartition("\r")[2][:_WIDTH] for line in last]
    return shown if any(line.strip() for line in shown) else []
