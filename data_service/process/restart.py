"""Decides whether and when a failed server is restarted. The caller has the clock and the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.system.backoff import pause_s


@dataclass(frozen=True)
class RestartPolicy:
    """How often a server may fail.

    Attributes:
        limit: Failures within `window_s` that lead to a restart; one more gives up. 0 never restarts.
        window_s: Seconds after which a failure no longer counts.
        first_s: Delay in seconds of the first restart; doubles with each further failure in the window.
        longest_s: The longest delay in seconds.
    """

    limit: int = 5
    window_s: float = 600.0
    first_s: float = 0.5
    longest_s: float = 30.0


@dataclass(frozen=True)
class Decision:
    """What follows a failure: the time of a restart, or None for no restart, and the reason."""

    restart_at: float | None
    reason: str


def decide(policy: RestartPolicy, failures: Sequence[float], now: float) -> Decision:
    """Decides what follows the newest failure.

    Args:
        policy: The limits.
        failures: Times of all failures so far, the newest included.
        now: The time now.
    """
    recent = sum(1 for time in failures if now - time < policy.window_s)
    if recent > policy.limit:
        if policy.limit == 0:
            return Decision(None, "restarts are disabled")
        return Decision(
            None, f"it failed {recent} times within {policy.window_s:g} s; at most {policy.limit} are allowed"
        )
    delay = pause_s(policy.first_s, policy.longest_s, recent)
    return Decision(now + delay, f"restarts in {delay:g} s, restart {recent} of {policy.limit}")
