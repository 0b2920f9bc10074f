"""Lines about what takes longer."""

from __future__ import annotations

from tfdist.command.image.progress import QUIET_S, Progress, mebibytes


def test_quiet_at_first_and_then_a_line_now_and_then() -> None:
    lines: list[str] = []
    now = [100.0]
    progress = Progress("saving a.tar", lines.append, lambda: now[0])
    for step in range(1, 8):
        now[0] = 100.0 + step * QUIET_S / 2
        progress.at(step << 20, 1777 << 20)
    assert lines == [f"  saving a.tar: {step} MiB of 1,777 MiB" for step in (2, 4, 6)]


def test_sizes() -> None:
    assert mebibytes(1_832_000_000) == "1,747 MiB"
