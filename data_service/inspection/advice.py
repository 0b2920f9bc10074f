"""Whether training waits for its data, and how many workers would end that. Computed from surveys, without a clock.

The formula: n busy workers produce one step's data in the time T of a step. The trainer waits a share w of T, so it
could consume the data every (1 - w) T. That needs 1 / (1 - w) times the throughput: n / (1 - w) workers. The formula
assumes evenly shared work and enough cores for the workers. Near w = 1 it divides by a value too small to measure well,
so beyond `_MOST_TIMES` times n the answer is "at least". If the workers are not busy, more of them would idle too, and
the formula is not used. Conversely, n workers that are busy a share b of the time have n b of work; n b / `_FULL` would
be enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.data_service.inspection.survey import DEAD, READY, Server, Survey
from tfdist.data_service.inspection.wait_report import LATE_S, SERVICE, TrainerWait

INPUT_BOUND, ELSEWHERE, UNEVEN, CALM, UNKNOWN = "input-bound", "slow elsewhere", "uneven", "not input-bound", "unknown"
# Shares of the time: waits above the first are worth a change, and below the second nothing; a worker that works more
# than the third is what the others wait for.
_WAITS, _HARDLY, _BUSY = 0.10, 0.01, 0.75
_FULL = 0.9
_MOST_TIMES = 4


@dataclass(frozen=True)
class Load:
    """The load of a worker.

    Attributes:
        worker: Its "HOST:PORT".
        state: As in a survey.
        busy: The share of time in which its datasets produced elements, 0 to 1; None if not reported, or after a
            restart.
    """

    worker: str
    state: str
    busy: float | None


@dataclass(frozen=True)
class Advice:
    """The result.

    Attributes:
        verdict: "input-bound", "slow elsewhere" (trainers wait, but not for the workers), "uneven" (they wait for some
            of the workers), "not input-bound" or "unknown".
        workers: Workers that are ready.
        wanted: How many would end the waiting, or be enough; None if their number is not the problem.
        at_least: Whether `wanted` is a lower bound.
        text: The explanation, in sentences.
        trainers: The trainers' reports.
        loads: The workers' loads.
    """

    verdict: str
    workers: int
    wanted: int | None
    at_least: bool
    text: tuple[str, ...]
    trainers: tuple[TrainerWait, ...]
    loads: tuple[Load, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON, with the schema number."""
        return {"schema": 1, **asdict(self)}


def loads(before: Survey, after: Survey, seconds: float) -> tuple[Load, ...]:
    """The load of each worker between two surveys this many seconds apart."""
    earlier = {worker.address: worker for worker in before.workers}
    return tuple(
        Load(worker.address, worker.state, _busy(earlier.get(worker.address), worker, seconds))
        for worker in after.workers
    )


def _busy(before: Server | None, after: Server, seconds: float) -> float | None:
    first, last = before.status if before is not None else None, after.status
    if first is None or last is None or first.started != last.started:
        return None
    name = "busy_seconds_total"
    if name not in first.counters or name not in last.counters:
        return None
    return min(1.0, max(0.0, last.counters[name] - first.counters[name]) / seconds)


def advise(trainers: Sequence[TrainerWait], found: Sequence[Load]) -> Advice:
    """Whether training is input-bound, and what to do; see the module docstring for the formulas.

    Args:
        trainers: Their reports; a trainer without a report for `LATE_S` no longer reads and is only shown.
        found: The loads of the workers.
    """
    ready = [load for load in found if load.state == READY]
    busy = [load.busy for load in ready if load.busy is not None]
    now = [wait for wait in trainers if wait.age_s < LATE_S]
    share = max((wait.share for wait in now), default=0.0)
    wanted, at_least = None, False
    text = _why_unknown(trainers, now, ready)
    if text:
        verdict = UNKNOWN
    elif share <= _WAITS:
        verdict = CALM
        wanted, text = _fewer(share, sum(busy) / len(busy), len(ready))
    elif min(busy) >= _BUSY:
        verdict = INPUT_BOUND
        at_least = share > 1 - 1 / _MOST_TIMES
        wanted = _MOST_TIMES * len(ready) if at_least else _whole(len(ready) / (1 - share))
        text = (
            f"Training is input-bound: the slowest trainer waits {share:.1%} of the time, and the workers are busy.",
            f"{'At least ' if at_least else ''}{wanted} workers would end the waiting, if there are cores for them; "
            f"{len(ready)} run now.",
        )
    else:
        verdict = UNEVEN if max(busy) >= _BUSY else ELSEWHERE
        text = (_not_the_number(verdict, share),)
    notes = _notes(now, found, share)
    return Advice(verdict, len(ready), wanted, at_least, text + notes, tuple(trainers), tuple(found))


def _fewer(share: float, busy: float, workers: int) -> tuple[int | None, tuple[str, ...]]:
    """How many are enough if no trainer waits; None if all are needed, or that is unknown."""
    text = (f"Training is not input-bound: no trainer waits more than {share:.1%} of the time.",)
    enough = max(1, _whole(workers * busy / _FULL))
    if share >= _HARDLY or enough >= workers:
        return None, text
    return enough, (*text, f"The workers are busy {busy:.1%} of the time: {enough} of {workers} would be enough.")


def _not_the_number(verdict: str, share: float) -> str:
    if verdict == UNEVEN:
        return (
            f"The slowest trainer waits {share:.1%} of the time, but only some workers are busy: the others have "
            "less to do, or faster cores. More workers would help little. Balance the work: files of equal size, "
            'sharding="dynamic", machines of one kind.'
        )
    return (
        f"The slowest trainer waits {share:.1%} of the time, but the workers are not busy: more of them would idle "
        "too. Check the network between them (compression, larger elements), max_outstanding_requests (too few "
        "elements in flight), and what the trainer itself does to the data after `distribute`."
    )


def _why_unknown(trainers: Sequence[TrainerWait], now: Sequence[TrainerWait], ready: Sequence[Load]) -> tuple[str, ...]:
    """Why no verdict is possible; empty if one is."""
    busy = [load.busy for load in ready if load.busy is not None]
    if not ready:
        return ("No worker is ready, so there is no verdict.",)
    if not trainers:
        return (
            "No trainer has reported how long it waits. A trainer that reads through tfdist.data_service.distribute "
            "reports every few seconds, starting 10 s after its first element. Run this while training runs.",
        )
    if not now:
        last = min(trainers, key=lambda wait: wait.age_s)
        return (
            f"No trainer is reading: the last report came {last.age_s:.0f} s ago, of a trainer that waited "
            f"{last.share:.1%} of the time. Run this while training runs.",
        )
    if not busy:
        return (
            "No worker has reported its load: the workers were started a moment ago, or not with tfdist's commands.",
        )
    share = max(wait.share for wait in now)
    if share <= _WAITS or any(busy):
        return ()
    return (
        "No worker was busy during the measurement, so it seems that no trainer is reading: a pass has just ended, "
        f"or the model is being evaluated. The latest report says that the slowest trainer waits {share:.1%} of the "
        "time. If training is running, measure longer: --seconds 20.",
    )


def _notes(trainers: Sequence[TrainerWait], found: Sequence[Load], share: float) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if share > _WAITS and any(wait.measured_at == SERVICE for wait in trainers if wait.share == share):
        notes += (
            "The share was measured where elements leave the service. A `prefetch` after it waits while the model "
            "computes, so the share and the number of workers are upper bounds; for exact values put "
            "tfdist.data_service.measure_wait last.",
        )
    dead = [load.worker for load in found if load.state == DEAD]
    if dead:
        notes += (f"These workers are dead, and passes wait for them: {', '.join(dead)}. Restart them first.",)
    return notes


def _whole(number: float) -> int:
    """Rounds up, ignoring floating-point noise."""
    return math.ceil(round(number, 6))
