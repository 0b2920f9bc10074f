"""Whether training waits for its data, and how many workers would end that. Pure: from surveys, without a clock.

The formula: n workers that work all the time give one step's data in the time T of a step. Of T the trainer waits the
share w, so it could take the data every (1 - w) T. That needs 1 / (1 - w) times the throughput: n / (1 - w) workers.
It holds where work is shared out evenly and there are cores for the workers. Near w = 1 it divides by what is hardly
measured, so beyond `_MOST_TIMES` times n the answer is "at least so many".
Where the workers do not work all the time, more of them would idle as well, and the formula is not used.
The other way round, n workers that are busy a share b of the time have n b of work; they could be n b / `_FULL`.
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
    """How much a worker works.

    Attributes:
        worker: Its "HOST:PORT".
        state: As in a survey.
        busy: The share of the time in which its datasets worked, 0 to 1; None where it did not tell, or has restarted.
    """

    worker: str
    state: str
    busy: float | None


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes:
        verdict: "input-bound", "slow elsewhere" (they wait, and not for the workers), "uneven" (some workers are what
            they wait for), "not input-bound" or "unknown".
        workers: Workers that are ready.
        wanted: How many would end the waiting, or would do; None where their number is not what matters.
        at_least: Whether `wanted` is only known to be no less.
        text: What it means, in sentences.
        trainers: What the trainers told.
        loads: What the workers told.
    """

    verdict: str
    workers: int
    wanted: int | None
    at_least: bool
    text: tuple[str, ...]
    trainers: tuple[TrainerWait, ...]
    loads: tuple[Load, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them, with the number of the schema."""
        return {"schema": 1, **asdict(self)}


def loads(before: Survey, after: Survey, seconds: float) -> tuple[Load, ...]:
    """How much each worker worked between two surveys that were so many seconds apart."""
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
    """Whether training is input-bound, and what to do; the formulas stand at the head of this file.

    Args:
        trainers: What they told; one that has told nothing for `LATE_S` reads no more, and is only shown.
        found: How much the workers work.
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
            f"{'At least ' if at_least else ''}{wanted} workers would end the waiting, where there are cores for them; "
            f"{len(ready)} run now.",
        )
    else:
        verdict = UNEVEN if max(busy) >= _BUSY else ELSEWHERE
        text = (_not_the_number(verdict, share),)
    notes = _notes(now, found, share)
    return Advice(verdict, len(ready), wanted, at_least, text + notes, tuple(trainers), tuple(found))


def _fewer(share: float, busy: float, workers: int) -> tuple[int | None, tuple[str, ...]]:
    """How many would do where nobody waits; None where all that run are needed, or that is not known."""
    text = (f"Training is not input-bound: no trainer waits more than {share:.1%} of the time.",)
    enough = max(1, _whole(workers * busy / _FULL))
    if share >= _HARDLY or enough >= workers:
        return None, text
    return enough, (*text, f"The workers are busy {busy:.1%} of the time: {enough} of {workers} would do.")


def _not_the_number(verdict: str, share: float) -> str:
    if verdict == UNEVEN:
        return (
            f"The slowest trainer waits {share:.1%} of the time, and only some workers are busy: the others have less "
            "to do, or faster cores. More workers help little. Look at the parts: files of one size, sharding "
            '"dynamic", machines of one kind.'
        )
    return (
        f"The slowest trainer waits {share:.1%} of the time, and the workers are not busy: more of them would idle as "
        "well. Look at the network between them (compression, larger elements), at max_outstanding_requests (too few "
        "elements on their way), and at what the trainer itself does to the data behind `distribute`."
    )


def _why_unknown(trainers: Sequence[TrainerWait], now: Sequence[TrainerWait], ready: Sequence[Load]) -> tuple[str, ...]:
    """Why nothing can be said; empty where something can."""
    busy = [load.busy for load in ready if load.busy is not None]
    if not ready:
        return ("No worker is ready, so nothing can be said.",)
    if not trainers:
        return (
            "No trainer has told how long it waits. One that reads by tfdist.data_service.distribute tells it every "
            "few seconds, from 10 s on after its first element; ask while training runs.",
        )
    if not now:
        last = min(trainers, key=lambda wait: wait.age_s)
        return (
            f"No trainer reads now: the last one told {last.age_s:.0f} s ago that it waited {last.share:.1%} of the "
            "time. Ask while training runs.",
        )
    if not busy:
        return ("No worker has told how much it works; they were started a moment ago, or not by tfdist's commands.",)
    share = max(wait.share for wait in now)
    if share <= _WAITS or any(busy):
        return ()
    return (
        "No worker worked at all while this looked, so it seems that no trainer reads now: a pass has just ended, or "
        f"the model is evaluated. The last that was told is that the slowest waits {share:.1%} of the time. If "
        "training goes on, look longer: --seconds 20.",
    )


def _notes(trainers: Sequence[TrainerWait], found: Sequence[Load], share: float) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if share > _WAITS and any(wait.measured_at == SERVICE for wait in trainers if wait.share == share):
        notes += (
            "The share was measured where elements leave the service. A `prefetch` behind it waits while the model "
            "computes, so that the share and the number of workers are upper bounds; put "
            "tfdist.data_service.measure_wait last for the exact ones.",
        )
    dead = [load.worker for load in found if load.state == DEAD]
    if dead:
        notes += (f"These workers are dead, and passes wait for them: {', '.join(dead)}. Start them again first.",)
    return notes


def _whole(number: float) -> int:
    """The next whole number, past the noise of a division."""
    return math.ceil(round(number, 6))
