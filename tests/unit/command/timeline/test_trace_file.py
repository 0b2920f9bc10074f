"""Files of ranks are read, whole or not; others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import remark, source, span, text_of, write

from tfdist.command.timeline import trace_file
from tfdist.errors import ConfigError

EVENTS = [*source(3, 5_000, 70, size=4), span("call", "barrier x", 1.25, 2.0, rank=3, call=1)]


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    trace = trace_file.read(write(tmp_path / "run.3.json", EVENTS))
    assert (trace.rank, trace.size, trace.host, trace.to_unix_ns, trace.round_trip_ns) == (3, 4, "a", 5_000, 70)
    assert list(trace.events) == EVENTS
    assert trace.timed == trace.of("call") == EVENTS[3:]
    assert trace.begin_ns(EVENTS[3]) == trace.first_ns == 6_250


def test_of_a_file_that_was_cut_off_the_whole_events_are_read(tmp_path: Path) -> None:
    text = text_of([*EVENTS, span("call", "barrier y", 3, 4, rank=3, call=2)])
    begin, end = text.index('"barrier y"') - 9, text.rindex("}") + 1
    for cut in range(begin, end):
        (tmp_path / "run.json").write_text(text[:cut])
        assert list(trace_file.read(tmp_path / "run.json").events) == EVENTS, text[:cut]
    (tmp_path / "run.json").write_text(text[:end])
    assert len(trace_file.read(tmp_path / "run.json").events) == len(EVENTS) + 1


def test_bytes_that_are_no_text_cost_one_event(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(text_of(EVENTS)[:-3].encode() + b",\n\x00\xff\xfe")
    assert list(trace_file.read(tmp_path / "run.json").events) == EVENTS


def test_a_name_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    events = [*EVENTS, span("call", "barrier \u2028 \x85", 3, 4, rank=3, call=2)]
    text = text_of(events).replace("\\u2028", "\u2028").replace("\\u0085", "\x85")
    (tmp_path / "run.json").write_text(text[:-3] + ",\n{")
    assert list(trace_file.read(tmp_path / "run.json").events) == events


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "tfdist did not write it"),
        ("[\n]\n", "tfdist did not write it"),
        ("7", "tfdist did not write it"),
        ('{"traceEvents": 3}', "tfdist did not write it"),
        ('[3, {"name": "x", "ph": "X"}]', "tfdist did not write it"),
        (text_of(source(0) + source(1)), "a merged file"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=f"run.json is not the timeline of a rank: .*{problem}"):
        trace_file.read(tmp_path / "run.json")


@pytest.mark.parametrize("told", [None, 3, {}, {**source(0)[2]["args"], "rank": "first"}])
def test_a_damaged_place_is_refused(tmp_path: Path, told: object) -> None:
    path = write(tmp_path / "run.json", [{"name": "tfdist", "ph": "M", "args": told}])
    with pytest.raises(ConfigError, match=r"run.json is damaged, or from another release: .* as the rank wrote it"):
        trace_file.read(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no.json cannot be read: .*No such file"):
        trace_file.read(tmp_path / "no.json")


def test_files_come_by_rank_and_then_by_time(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "b", [*source(1), span("call", "x", 9, 10)]),
        write(tmp_path / "a2", [*source(0, to_unix_ns=5_000), span("call", "x", 1, 2)]),
        write(tmp_path / "a1", [*source(0), span("call", "x", 5, 6)]),
    ]
    assert [trace.path.name for trace in trace_file.read_all(paths)] == ["a1", "a2", "b"]
    with pytest.raises(ConfigError, match="a1 is given twice"):
        trace_file.read_all([*paths, tmp_path / "a1"])


def test_a_process_has_another_rank_after_a_loss(tmp_path: Path) -> None:
    events = [*source(2), remark("ranks counted anew", 10, rank=1, size=2), remark("ranks counted anew", 20, rank=0)]
    trace = trace_file.read(write(tmp_path / "run.json", events))
    assert [trace.rank_at(ns) for ns in (0, 9_999, 10_000, 19_999, 20_000, 10**18)] == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(("later", "before"), [(0, 0), (2, None)])
def test_a_job_of_one_rank_and_a_process_that_joins(tmp_path: Path, later: int, before: int | None) -> None:
    events = [*source(0, size=1), remark("ranks counted anew", 10, rank=later, size=3)]
    trace = trace_file.read(write(tmp_path / "run.json", events))
    assert (trace.rank, trace.rank_at(0), trace.rank_at(10_000)) == (later, before, later)
