"""How long to wait after consecutive failures. Uses no clock, and sets no limit on their number."""

from __future__ import annotations

_MOST_DOUBLINGS = 60  # beyond any limit, and avoids overflow


def pause_s(first_s: float, longest_s: float, failures: int) -> float:
    """Seconds to wait after this many failures: doubles with each one, from `first_s` up to `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(max(0, failures - 1), _MOST_DOUBLINGS))
