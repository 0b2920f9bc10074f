"""Decides whether a cluster gets one worker more or fewer, by how long trainers wait for data.

The rule is asymmetric on purpose. Waiting trainers slow the whole job, an idle worker costs a core: a worker is added
soon, and drained late and only when trainers hardly wait, so that the number does not oscillate. If a drain had to be
undone, the next one waits twice as long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfdist.errors import ConfigError

ADD, DRAIN, KEEP = "add", "drain", "keep"
_MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class ScalePolicy:
    """The bounds and thresholds of the rule.

    Attributes:
        smallest: Fewest workers, 1 or more.
        largest: Most workers.
        add_above: Share of the time that trainers wait (0 to 1) above which a worker is added.
        drain_below: Share below which one is drained.
        add_after_s: Seconds since the last change before one is added: the last change must have taken effect.
        drain_after_s: Seconds since the last change before one is drained; twice as long after each drain in a row
            that was followed by an add.
    """

    smallest: int
    largest: int
    add_above: float = 0.10
    drain_below: float = 0.01
    add_after_s: float = 20.0
    drain_after_s: float = 120.0

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest:
            raise ConfigError(f"expected 1 <= MIN <= MAX workers; received {self.smallest}:{self.largest}.")
        if not 0 <= self.drain_below < self.add_above <= 1:
            raise ConfigError(
                f"expected 0 <= drain_below < add_above <= 1; received {self.drain_below} and {self.add_above}."
            )
        if not 0 < self.add_after_s < float("inf") or not 0 < self.drain_after_s < float("inf"):
            raise ConfigError(
                "add_after_s and drain_after_s must be finite numbers of seconds greater than 0; received "
                f"{self.add_after_s} and {self.drain_after_s}."
            )

    @classmethod
    def parse(cls, text: str) -> ScalePolicy:
        """Reads "MIN:MAX".

        Raises:
            ConfigError: If the text has another form.
        """
        found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", text)
        if found is None:
            raise ConfigError(f"expected the bounds of autoscaling as MIN:MAX, such as 1:4; received {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def check_start(self, workers: int) -> None:
        """Checks the number of workers that a cluster starts with.

        Raises:
            ConfigError: If it is out of bounds.
        """
        if not self.smallest <= workers <= self.largest:
            raise ConfigError(
                f"a cluster that scales from {self.smallest} to {self.largest} workers must start with a number in "
                f"that range; received workers={workers}."
            )


@dataclass(frozen=True)
class Observation:
    """What is known at one moment.

    Attributes:
        waiting: For each measured trainer, the share of recent time that it waited for data, 0 to 1.
        workers: Workers that run or start, without draining ones.
        unsettled: Workers that start, drain, or have failed permanently.
        since_change_s: Seconds since the last worker was ready or gone, or since the start.
        regrets: How many drains in a row were followed by an add.
    """

    waiting: tuple[float, ...]
    workers: int
    unsettled: int
    since_change_s: float
    regrets: int = 0


@dataclass(frozen=True)
class ScaleDecision:
    """The action, "add", "drain" or "keep", and the reason for the log."""

    action: str
    reason: str


def decide(policy: ScalePolicy, seen: Observation) -> ScaleDecision:
    """One step of the rule. The slowest trainer decides: the others wait for it in every step.

    Args:
        policy: The bounds and thresholds.
        seen: What is known now.
    """
    if seen.workers < policy.smallest:
        return ScaleDecision(ADD, f"{seen.workers} workers; the minimum is {policy.smallest}")
    if seen.workers > policy.largest:
        return ScaleDecision(DRAIN, f"{seen.workers} workers; the maximum is {policy.largest}")
    if seen.unsettled:
        return ScaleDecision(KEEP, f"{seen.unsettled} workers are starting, draining or have failed")
    if not seen.waiting:
        return ScaleDecision(KEEP, "no trainer has been measured")
    share = max(seen.waiting)
    who = f"slowest of {len(seen.waiting)} trainers" if len(seen.waiting) > 1 else "trainer"
    told = f"the {who} waits {share:.1%} of the time"
    if share > policy.add_above:
        return _change(ADD, told, seen.workers == policy.largest, policy.add_after_s - seen.since_change_s)
    if share < policy.drain_below:
        drain_after_s = policy.drain_after_s * 2.0 ** min(seen.regrets, _MOST_DOUBLINGS)
        return _change(DRAIN, told, seen.workers == policy.smallest, drain_after_s - seen.since_change_s)
    return ScaleDecision(KEEP, f"{told}; no change between {policy.drain_below:.0%} and {policy.add_above:.0%}")


def _change(action: str, told: str, at_bound: bool, early_s: float) -> ScaleDecision:
    if at_bound:
        return ScaleDecision(
            KEEP, f"{told}, but the {'maximum' if action == ADD else 'minimum'} number of workers already runs"
        )
    if early_s > 0:
        return ScaleDecision(KEEP, f"{told}; too soon after the last change, {early_s:.0f} s more")
    return ScaleDecision(action, told)
