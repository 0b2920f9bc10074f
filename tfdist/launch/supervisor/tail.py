"""The last lines that a rank has printed, for the launcher's report."""

from __future__ import annotations

from tfdist.system.terminal.chatter import is_chatter
from tfdist.system.terminal.line import plain

LINES = 40
# How much of a stream is kept for them.
BYTES = 1 << 14
_WIDTH = 1000
# Behind the error of a session, before a line or two for each call that has made the node.
_ORIGIN = "Original stack trace for '"


def lines(data: bytes) -> list[str]:
    """The last lines of a stream, as text that is safe on any terminal; empty if they contain nothing useful."""
    telling = b"\n".join(line for line in data.split(b"\n") if not is_chatter(line))
    last = _without_origin(telling.decode(errors="replace").strip("\n").split("\n"))[-LINES:]
    shown = [plain(line.rstrip("\r\b").rpartition("\r")[2].encode()).decode()[:_WIDTH] for line in last]
    return shown if any(line.strip() for line in shown) else []


def _without_origin(said: list[str]) -> list[str]:
    """Without the calls that have made the node that failed, if they end the lines: the reason is above them."""
    origins = [number for number, line in enumerate(said) if line.startswith(_ORIGIN)]
    if not origins or any(line.strip() and not line.startswith(" ") for line in said[origins[-1] + 1 :]):
        return said
    return "\n".join(said[: origins[-1]]).rstrip("\n").split("\n")
