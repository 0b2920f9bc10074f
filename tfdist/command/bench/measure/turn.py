"""Times calls in turn, round by round, so that the machine's noise affects all of them equally.

Independent of ranks and TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

LEAST_ROUNDS = 5
MOST_ROUNDS = 1000


def take_turns(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    before: Callable[[], object],
    done: Callable[[int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """The seconds of each call in each round.

    Args:
        calls: The calls to time, in the order of a round.
        rounds: Number of rounds.
        before: Called before each round, untimed, to bring the ranks back in step.
        done: Called between rounds with the number of rounds done.
        clock: Returns seconds.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        before()
        for call, samples in zip(calls, seconds, strict=True):
            start = clock()
            call()
            samples.append(clock() - start)
        done(number + 1)
    return seconds


def rounds_within(budget_s: float, round_s: float) -> int:
    """How many rounds of `round_s` seconds fit into `budget_s`: 5 to 1,000."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget_s / max(round_s, 1e-9))))
