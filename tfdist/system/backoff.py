"""How long to wait after failures in a row. No clock, and no limit of them."""

from __future__ import annotations

_MOST_DOUBLINGS = 60  # far beyond any limit, and no overflow


def pause_s(first_s: float, longest_s: float, failures: int) -> float:
    """Seconds to wait after so many failures: doubled with each one, from `first_s` to `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(max(0, failures - 1), _MOST_DOUBLINGS))
