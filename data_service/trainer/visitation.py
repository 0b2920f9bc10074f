"""The outcome of one pass over the data: elements expected, seen, lost, duplicated."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.data_service.trainer import watch
from tfdist.errors import ConfigError
from tfdist.native import library

_logger = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Visitation:
    """The visitation report of one pass over the data.

    With an `element_id` the figures count ids, and `lost` and `doubled` are exact. Without one they come from counting:
    one lost and one duplicated element cancel out. Batches are elements here: if each worker batches its own part of
    the data, each has a short last batch, so a few more may come than expected although nothing is duplicated
    (`short_batches`).

    Attributes:
        name: The name of the dataset in this process: address, id and number.
        pass_number: The number of the pass in this process, starting at 1; 0: none was begun.
        complete: Whether it was read to the end.
        expected: Number of elements in the data; None: unknown.
        seen: Number received.
        lost: Number not received; None: unknown, as before the end, or for part of a shared pass.
        doubled: Number received more than once; None: unknown, as when more batches came than expected and some may be
            short ones.
        exact: Whether elements were counted by id.
        shared: Whether other trainers may have read parts of this pass.
        repeats: Whether elements legitimately come more than once, from every worker.
        id_bytes: Memory used by the ids, in bytes.
        short_batches: Whether batches were counted of which each worker may have made a short last one, or dropped it
            with `drop_remainder`.
    """

    name: str
    pass_number: int
    complete: bool
    expected: int | None
    seen: int
    lost: int | None
    doubled: int | None
    exact: bool
    shared: bool = False
    repeats: bool = False
    id_bytes: int = 0
    short_batches: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing is known to be lost or wrongly duplicated."""
        return not self.lost and (self.repeats or not self.doubled)

    def __str__(self) -> str:
        figures = ((self.expected, "expected"), (self.seen, "seen"), (self.lost, "lost"), (self.doubled, "doubled"))
        text = ", ".join(f"{'unknown' if number is None else f'{number:,}'} {what}" for number, what in figures)
        how = "counted by id" if self.exact else "counted without ids"
        if self.short_batches and self.expected not in (None, self.seen):
            how += "; each worker makes or drops its own short last batch"
        state = "" if self.complete else ", not read to the end"
        part = ", part of a shared pass" if self.shared else ""
        return f"{self.name}, pass {self.pass_number}: {text} ({how}{state}{part})"


def visitation(dataset: Any) -> Visitation:
    """Reports on the latest pass of this process over a dataset.

    You need it to verify that training saw all data: the data service silently loses and repeats elements when a worker
    dies. `tfdist.callbacks.DataWait` logs it at the end of an epoch in which elements were lost or duplicated.

    Args:
        dataset: What `distribute` or `from_id` returned, or a dataset made from it.

    Returns:
        The `Visitation` of the latest pass.

    Raises:
        ConfigError: If the dataset does not read from a data service.

    Example:

    ```python
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050", element_id=lambda image, label, key: key)
    model.fit(dataset.prefetch(2), epochs=1)
    print(tfdist.data_service.visitation(dataset))
    ```
    """
    for watched in watch.watches_of(dataset):
        if watched.service:
            return report(watched, library.read_watch(watched.name).newest)
    raise ConfigError(
        "dataset does not read from a data service; expected what `tfdist.data_service.distribute` or `from_id` "
        "returned, or a dataset that was made from it in this process."
    )


def report(watched: watch.Watch, reading: library.Pass) -> Visitation:
    """The report on a pass, given what the dataset is."""
    complete = bool(reading.ended)
    seen = reading.ids if watched.by_id else reading.elements
    lost = doubled = None
    judged = complete and not watched.shared and watched.expected is not None
    if watched.by_id:
        doubled = reading.ids - reading.distinct_ids
        lost = max(0, watched.expected - reading.distinct_ids) if judged and watched.expected is not None else None
    elif judged and watched.expected is not None:
        lost = 0 if watched.repeats else max(0, watched.expected - seen)
        doubled = _surplus(watched.expected, seen, watched.gathered)
    return Visitation(
        name=watched.name,
        pass_number=reading.number,
        complete=complete,
        expected=watched.expected,
        seen=seen,
        lost=lost,
        doubled=doubled,
        exact=watched.by_id,
        shared=watched.shared,
        repeats=watched.repeats,
        id_bytes=reading.id_bytes,
        short_batches=watched.gathered and not watched.by_id,
    )


def _surplus(expected: int, seen: int, short_batches: bool) -> int | None:
    """How many came twice, judged by count alone; None if the surplus may be short batches.

    A trainer cannot bound their number: a worker that joins or restarts mid-pass makes one more.
    """
    return None if short_batches and seen > expected else max(0, seen - expected)


def combine(reports: Iterable[Visitation]) -> Visitation:
    """Combines the reports on a pass that several trainers shared.

    One element that reached two trainers is indistinguishable from two elements, so the result is not exact: lost and
    duplicated elements come from counting, with at least as many duplicates as the trainers saw themselves.

    Args:
        reports: The `visitation` of each trainer, all of the same pass.

    Returns:
        A `Visitation` of all trainers together, under the first one's name.

    Raises:
        ConfigError: If there is no report, or they do not expect the same data.

    Example:

    ```python
    print(combine([Visitation(**report) for report in reports_of_all_trainers]))
    ```
    """
    parts = list(reports)
    if not parts or len({part.expected for part in parts}) > 1:
        raise ConfigError(
            "reports must be one or more that expect the same number of elements; received those that expect "
            f"{[part.expected for part in parts]}."
        )
    first = parts[0]
    seen = sum(part.seen for part in parts)
    complete = all(part.complete for part in parts)
    within = sum(part.doubled or 0 for part in parts)
    short_batches = any(part.short_batches for part in parts)
    lost = doubled = None
    if complete and first.expected is not None:
        lost = max(0, first.expected - (seen - within))
        surplus = _surplus(first.expected, seen, short_batches)
        doubled = None if surplus is None else max(within, surplus)
    figures = (first.name, first.pass_number, complete, first.expected, seen, lost, doubled)
    return Visitation(*figures, exact=False, short_batches=short_batches)


def newest_passes() -> dict[str, int]:
    """The number of the latest complete pass of each watched dataset of this process."""
    return {
        watched.name: library.read_watch(watched.name).newest_ended.number
        for watched in watch.watches()
        if watched.service
    }


def ended_since(before: dict[str, int]) -> list[Visitation]:
    """The latest complete pass of each dataset, if it is later than that in an earlier result of `newest_passes`."""
    readings = [(watched, library.read_watch(watched.name).newest_ended) for watched in watch.watches()]
    return [
        report(watched, reading)
        for watched, reading in readings
        if watched.service and reading.number > before.get(watched.name, 0)
    ]


def merged(by_rank: Sequence[Sequence[Visitation]]) -> list[Visitation]:
    """The passes that the ranks shared, each combined from the reports of all; without those that a rank lacks."""
    named = [{each.name: each for each in reports if each.shared} for reports in by_rank]
    return [combine([reports[name] for reports in named]) for name in named[0] if all(name in each for each in named)]


def log_faults(reports: Iterable[Visitation]) -> None:
    """Logs the passes that lost or duplicated elements."""
    for each in reports:
        if not each.is_clean:
            _logger.warning("data was lost or duplicated on its way from the data service: %s", each)
