"""Whether and when a server that ended by itself is started again. Pure: the caller has the clock and the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.system.backoff import pause_s


@dataclass(frozen=True)
class RestartPolicy:
    """How often a server may fail.

    Attributes:
        limit: Failures within `window_s` that are answered by a restart; one more gives up. 0 never restarts.
        window_s: Seconds after which a failure no longer counts.
        first_s: Seconds before the first restart; doubles with each further failure in the window.
        longest_s: The most seconds before a restart.
    """

    limit: int = 5
    window_s: float = 600.0
    first_s: float = 0.5
    longest_s: float = 30.0


@dataclass(frozen=True)
class Decision:
    """What follows a failure: a restart at a time, or (None) none, and the reason in words."""

    restart_at: float | None
    reason: str


def decide(policy: RestartPolicy, failures: Sequence[float], now: float) -> Decision:
    """What follows the newest failure.

    Args:
        policy: The limits.
        failures: Times of all failures so far, the newest included.
        now: The time now.
    """
    recent = sum(1 for time in failures if now - time < policy.window_s)
    if recent > policy.limit:
        if policy.limit == 0:
            return Decision(None, "it is not to be started again")
        return Decision(None, f"it failed {recent} times within {policy.window_s:g} s; {policy.limit} are allowed")
    delay = pause_s(policy.first_s, policy.longest_s, recent)
    return Decision(now + delay, f"starts again in {delay:g} s, restart {recent} of {policy.limit}")
