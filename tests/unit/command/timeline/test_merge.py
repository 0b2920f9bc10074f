"""Several clocks become one; every file keeps a process of its own."""

from __future__ import annotations

from pathlib import Path

from recording import on_gpu, source, span, write

from tfdist.command.timeline import merge, trace_file

SECOND = 10**9
UNIX = 1_700_000_000 * SECOND


def test_times_are_those_of_rank_zero(tmp_path: Path) -> None:
    """Rank 1's machine was started 100 s later, and its event began 2.5 us after that of rank 0."""
    paths = [
        write(tmp_path / "0", [*source(0, UNIX), span("call", "x", 500e6 + 0.125, 500e6 + 9)]),
        write(
            tmp_path / "1", [*source(1, UNIX + 100 * SECOND, 40_000), span("call", "x", 400e6 + 2.625, 400e6 + 9, 1)]
        ),
    ]
    merged = merge.merge(trace_file.read_all(paths))
    calls = [event for event in merged["traceEvents"] if event.get("cat") == "call"]
    assert [(event["pid"], event["ts"]) for event in calls] == [(0, 0.0), (1, 2.5)]
    assert merged["otherData"] == {
        "unix_time_ns_at_0": UNIX + 500 * SECOND + 125,
        "clock_round_trip_ns": {"0": 0, "1": 40_000},
    }
    assert merged["displayTimeUnit"] == "ms"


def test_ranks_that_were_started_anew_are_other_processes(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "run.0.json", [*source(0), span("call", "x", 1, 2)]),
        write(tmp_path / "run.0.2.json", [*source(0), span("call", "y", 8, 9), *on_gpu(1, 8, 9, 1)]),
        write(tmp_path / "run.1.json", [*source(1), span("call", "x", 1, 2, rank=1)]),
    ]
    events = merge.merge(trace_file.read_all(paths))["traceEvents"]
    assert [(event["name"], event["pid"]) for event in events if event.get("cat") == "call"] == [
        ("x", 0),
        ("y", 2),
        ("x", 1),
    ]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0 (host a)", 2: "rank 0 (host a), run.0.2.json", 1: "rank 1 (host a)"}
    order = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    assert order == {0: 0, 1: 1, 2: 2}


def test_a_rank_without_events_has_no_say_in_the_time(tmp_path: Path) -> None:
    paths = [write(tmp_path / "0", source(0, 7)), write(tmp_path / "1", [*source(1, 9), span("call", "x", 3, 4)])]
    merged = merge.merge(trace_file.read_all(paths))
    assert merged["otherData"]["unix_time_ns_at_0"] == 3_009
    assert merge.merge(trace_file.read_all(paths[:1]))["otherData"]["unix_time_ns_at_0"] == 0
