"""Sums of phases, who was waited for, and what went on meanwhile: of events whose sums are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import Event, on_gpu, remark, source, span, write

from tfdist.command.timeline import summary, trace_file


def shares_of(folder: Path, *files: list[Event]) -> list[summary.Share]:
    paths = [write(folder / f"run.{number}.json", events) for number, events in enumerate(files)]
    return summary.summarize(trace_file.read_all(paths))


def call(begin: float, end: float, number: int = 1, **more: object) -> Event:
    return span("call", "allreduce g", begin, end, call=number, bytes=1000, **more)


RANK_0 = [
    *source(0),
    call(0, 4e6),
    span("phase", "wait", 0, 1e6, last_rank=1),
    span("bucket", "bucket 0", 1e6, 4e6),
    span("phase", "pack", 1e6, 1.5e6),
    span("phase", "reduce", 1.5e6, 2.5e6),
    span("phase", "wait", 2.5e6, 2.75e6, last_rank=1),
    span("phase", "unpack", 2.75e6, 3.5e6),
    call(9e6, 10e6, 2),
]
RANK_1 = [
    *source(1, to_unix_ns=10**9),
    call(0, 3e6, rank=1),
    span("phase", "wait", 0, 0.5e6, rank=1, last_rank=0),
    span("phase", "reduce", 0.5e6, 3e6, rank=1),
]


def test_times_add_up_to_the_wall(tmp_path: Path) -> None:
    first, second = shares_of(tmp_path, RANK_0, RANK_1)
    assert (first.rank, first.file, first.wall, first.calls, first.bytes) == (0, "run.0.json", 10.0, 2, 2000)
    assert (first.wait, first.pack, first.reduce, first.unpack) == (1.25, 0.5, 1.0, 0.75)
    assert (first.other, first.outside, first.communication) == (1.5, 5.0, 0.5)
    assert first.overlap is None
    assert (second.wall, second.outside, second.communication, second.other) == (3.0, 0.0, 1.0, 0.0)


def test_calls_that_failed_are_named(tmp_path: Path) -> None:
    failed = [call(11e6, 12e6, 3, failed=True), span("call", "barrier x", 12e6, 13e6, failed=True)]
    shares = shares_of(tmp_path, [*RANK_0, *failed], [*RANK_1, failed[0], failed[0]])
    assert [share.failed for share in shares] == [("allreduce g", "barrier x"), ("allreduce g",) * 2]
    assert summary.table(shares).splitlines()[-2:] == [
        "Calls that failed on rank 0: allreduce g, barrier x.",
        "Calls that failed on rank 1: 2 of allreduce g.",
    ]
    assert "failed" not in summary.table(shares_of(tmp_path, RANK_0))


def test_who_came_last_was_waited_for(tmp_path: Path) -> None:
    shares = shares_of(tmp_path, RANK_0, RANK_1)
    assert [share.waited_for for share in shares] == [0.5, 1.25]
    assert summary.slowest(shares) is shares[1]
    assert summary.slowest(shares[:1] and shares_of(tmp_path, source(0))) is None


def test_ranks_that_were_counted_anew_are_found(tmp_path: Path) -> None:
    """Rank 0 is lost; what was rank 2 is rank 1 from then on, and waited for under that number."""
    anew = 5.0
    shares = shares_of(
        tmp_path,
        [*source(0, size=3), call(0, 1)],
        [
            *source(1, size=3),
            span("phase", "wait", 0, 1e6, last_rank=2),
            remark("ranks counted anew", anew * 1e6, rank=0, size=2),
            span("phase", "wait", 6e6, 8e6, last_rank=1),
        ],
        [*source(2, size=3), call(0, 1), remark("ranks counted anew", anew * 1e6, rank=1, size=2)],
    )
    assert [share.waited_for for share in shares] == [0.0, 0.0, 3.0]


def test_a_process_that_joined_is_no_rank_before(tmp_path: Path) -> None:
    """It writes that it is rank 0 of one until then, when others may wait for the real rank 0."""
    shares = shares_of(
        tmp_path,
        [*source(0), call(0, 1e6), remark("ranks counted anew", 20e6, rank=0, size=3)],
        [
            *source(1),
            span("phase", "wait", 12e6, 15e6, last_rank=0),
            remark("ranks counted anew", 20e6, rank=1, size=3),
            span("phase", "wait", 22e6, 29e6, last_rank=2),
        ],
        [*source(0, size=1), call(10e6, 11e6), remark("ranks counted anew", 20e6, rank=2, size=3)],
    )
    assert [(share.rank, share.waited_for) for share in shares] == [(0, 3.0), (1, 0.0), (2, 7.0)]


def test_ranks_that_were_started_anew_are_told_apart(tmp_path: Path) -> None:
    waits = [span("phase", "wait", 1e6, 2e6, last_rank=0), span("phase", "wait", 21e6, 24e6, last_rank=0)]
    shares = shares_of(
        tmp_path, [*source(0), call(0, 9e6)], [*source(0), call(20e6, 29e6)], [*source(1), call(0, 1), *waits]
    )
    assert [share.waited_for for share in shares] == [1.0, 3.0, 0.0]


def test_a_rank_whose_file_is_missing_is_left_out(tmp_path: Path) -> None:
    (share,) = shares_of(tmp_path, RANK_0)
    assert share.waited_for == 0


def test_overlap_is_what_nobody_waited_for(tmp_path: Path) -> None:
    (share,) = shares_of(tmp_path, [*source(0), *on_gpu(1, 0, 6, 1), *on_gpu(2, 2, 4, 1), *on_gpu(3, 9, 9, 0)[:1]])
    assert share.overlap == 1 - 2 / 8


def test_overlap_where_calls_are_numbered_anew(tmp_path: Path) -> None:
    (share,) = shares_of(tmp_path, [*source(0), *on_gpu(5, 1, 3, 1), *on_gpu(5, 100, 102, 1)])
    assert share.overlap == 1 - 2 / 4


def test_concurrent_process_sets_count_once_in_wall_time(tmp_path: Path) -> None:
    (share,) = shares_of(tmp_path, [*source(0), call(0, 4e6), call(2e6, 6e6, tid=2), call(8e6, 10e6)])
    assert (share.outside, share.communication) == (2.0, 0.8)


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 2), (1, 3)], 3), ([(5, 6), (0, 9), (1, 2)], 9), ([(0, 1), (1, 2)], 2), ([(0, 1), (4, 6)], 3)],
)
def test_covered(intervals: list[tuple[float, float]], length: float) -> None:
    assert summary.covered(intervals) == length


def test_the_table_says_it_in_words(tmp_path: Path) -> None:
    lost = remark("events lost", 9.5e6, records=7)
    shares = shares_of(tmp_path, [*RANK_0, lost], RANK_1)
    assert summary.table(shares).splitlines() == [
        "rank  wall s  calls  MB   wait s  pack s  reduce s  unpack s  other s  of wall  overlap  waited for s",
        "0     10.000  2      0.0  1.250   0.500   1.000     0.750     1.500    50%      –        0.500",
        "1     3.000   1      0.0  0.500   0.000   2.500     0.000     0.000    100%     –        1.250",
        "The other ranks waited longest for rank 1: 1.250 s in total.",
        "7 calls and buckets are missing: they were recorded faster than they could be written.",
    ]
    assert summary.table(shares_of(tmp_path, [*source(0), call(0, 1)])).endswith("No rank waited for another.")


def test_the_document_has_every_column(tmp_path: Path) -> None:
    told = summary.document(shares_of(tmp_path, RANK_0, RANK_1))
    assert told["slowest_rank"] == 1
    assert told["ranks"][0]["communication"] == 0.5
    assert told["ranks"][0]["reduce"] == 1.0
    assert told["ranks"][1]["overlap"] is None
