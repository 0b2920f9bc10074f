"""What an autoscaler observes of a cluster, and its state between two looks. Starts and drains nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfdist.data_service.process.autoscale import ADD, DRAIN, KEEP, Observation, ScaleDecision, ScalePolicy, decide
from tfdist.data_service.process.supervisor import FAILED, READY, Member

LOOK_S = 2.0


def settled(member: Member) -> bool:
    """Whether a worker works, or has left on request."""
    return member.state == READY if not member.leaving else member.over and member.state != FAILED


def staying(workers: Sequence[Member]) -> list[Member]:
    """The workers that were started and not drained, dead or alive."""
    return [member for member in workers if not member.leaving]


class Scaler:
    """Looks from time to time, by the caller's clock.

    Args:
        policy: The bounds and thresholds.
        now: The time now.
    """

    def __init__(self, policy: ScalePolicy, now: float) -> None:
        self.policy = policy
        self._look_at = self._settled_at = now
        self._regrets = 0
        self._last = KEEP

    def look(self, now: float, workers: Sequence[Member], waiting: Callable[[], Sequence[float]]) -> ScaleDecision:
        """The action to take now; "keep" between two looks.

        Args:
            now: The time now.
            workers: All workers that ever existed.
            waiting: Returns the shares of time that trainers wait. An OSError means that they are unknown.
        """
        unsettled = sum(not settled(member) for member in workers)
        if unsettled:
            # What trainers told before is of another number of workers.
            self._settled_at = now
        if now < self._look_at:
            return ScaleDecision(KEEP, "the last look was a moment ago")
        self._look_at = now + min(LOOK_S, self.policy.add_after_s)
        try:
            shares = tuple(waiting())
        except OSError as error:
            return ScaleDecision(KEEP, f"the dispatcher does not report which trainers wait: {error}")
        since_s = now - self._settled_at
        return decide(self.policy, Observation(shares, len(staying(workers)), unsettled, since_s, self._regrets))

    def note(self, action: str, now: float) -> None:
        """Records that a decided action has begun."""
        if self._last == DRAIN:
            self._regrets = self._regrets + 1 if action == ADD else 0
        self._last, self._settled_at = action, now
