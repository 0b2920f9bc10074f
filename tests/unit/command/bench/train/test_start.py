"""Starts beside independent processes: rows, sums, and processes of which none is left. Nothing is trained."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.bench import option
from tfdist.command.bench.train import start
from tfdist.errors import BuildError, ConfigError
from tfdist.system.rank import job_place


def of(median: float, least: float = 1.0, communication: float = 0.5) -> dict[str, Any]:
    return {"median_ms": median, "min_ms": least, "communication_ms": communication, "steps": 30}


STARTS = [
    start.row(1, of(12.0, 9.0), [of(10.0, 8.0), of(14.0, 7.0)]),
    start.row(2, of(18.0, 10.0), [of(8.0), of(16.0)]),
]


def options(*words: str) -> option.Starts:
    parsed = option.parse(["train", "--starts", "2", *words])
    assert isinstance(parsed, option.Starts)
    return parsed


def test_a_row_compares_with_the_mean_of_independent_processes() -> None:
    assert STARTS[0] == {
        "start": 1,
        "median_ms": 12.0,
        "min_ms": 9.0,
        "communication_ms": 0.5,
        "independent_median_ms": [10.0, 14.0],
        "independent_min_ms": 7.0,
        "ratio": 1.0,
    }


def test_the_summary_is_of_medians_of_all_starts() -> None:
    summed = start.summary(STARTS)
    assert summed["ranks"] == {"median_ms": 15.0, "least_ms": 12.0, "most_ms": 18.0, "spread": 0.4}
    assert summed["independent"] == {
        "median_ms": 12.0,
        "least_ms": 8.0,
        "most_ms": 16.0,
        "spread": pytest.approx(2 / 3),
    }
    assert summed["ratio_of_medians"] == 1.25
    assert summed["ratio_of_minima"] == 9.0
    assert summed["slowest_start_to_slowest_independent"] == 1.125
    assert start.conclusion(summed, 2) == [
        "2 ranks: median 15.0 ms, 12.0 to 18.0 over starts (40.0 %)",
        "2 independent processes: median 12.0 ms, 8.0 to 16.0 over starts (66.7 %)",
        "ranks / independent: 1.250 (medians), 9.000 (least times), 1.125 (slowest starts)",
    ]


@pytest.mark.parametrize(
    ("cores", "processes", "expected"),
    [
        ([0, 1], 2, [{0}, {1}]),
        ([2, 3, 5, 7, 8], 2, [{2, 3}, {5, 7}]),
        ([0], 2, [None, None]),
    ],
)
def test_cores_are_shared_equally(cores: list[int], processes: int, expected: list[Any]) -> None:
    assert start.shares(cores, processes) == expected


def test_table_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    measured = iter([(of(12.0, 9.0), [of(10.0), of(14.0)]), (of(18.0), [of(8.0), of(16.0)])])
    monkeypatch.setattr(start, "_measure", lambda options: next(measured))
    monkeypatch.setattr(job_place, "is_taken", lambda: False)
    start.run(options("--model", "VGG16", "--json", f"{tmp_path}/a.json", "--csv", f"{tmp_path}/a.csv"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tfdist bench train: --model VGG16")
    assert lines[1] == "2 starts of 2 ranks and of 2 independent processes, in turn"
    assert lines[3].split() == ["1", "12.0", "9.0", "0.5", "10.0", "14.0", "1.0", "1.000"]
    document = json.loads((tmp_path / "a.json").read_text())
    assert [row["median_ms"] for row in document["starts"]] == [12.0, 18.0]
    assert document["summary"]["ratio_of_medians"] == 1.25
    with (tmp_path / "a.csv").open() as file:
        assert [row["independent_1_median_ms"] for row in csv.DictReader(file)] == ["14.0", "16.0"]


def test_each_start_is_of_ranks_and_then_of_as_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[list[str]]] = []
    parsed: list[Any] = []

    def run(commands: Any, cores: Any) -> None:
        """Writes what the processes would."""
        assert len(commands) == len(cores)
        calls.append([list(command) for command in commands])
        for command in commands:
            path = command[command.index("--json") + 1]
            Path(path).write_text(json.dumps({"rows": [of(float(len(calls)))]}))
            parsed.append(option.parse(command[command.index("train") :]))

    monkeypatch.setattr(start, "run_side_by_side", run)
    together, independent = start._measure(options("--ranks", "3", "--jit-compile", "--threads", "default"))
    assert together["median_ms"] == 1.0 and [row["median_ms"] for row in independent] == [2.0] * 3
    ((ranks,), alone) = calls
    assert ranks[ranks.index("-np") + 1] == "3" and "--plain" not in ranks
    assert "--no-config" in ranks, "a tfdist.yaml says nothing"
    assert len({command[command.index("--json") + 1] for command in alone}) == 3
    assert [one.plain for one in parsed] == [False, True, True, True]
    assert {(one.jit_compile, one.threads, one.inter_op_threads) for one in parsed} == {(True, 0, 1)}


def test_it_does_not_run_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_place, "is_taken", lambda: True)
    with pytest.raises(ConfigError, match="tfdist bench train --starts 2 --ranks 4"):
        start.run(options("--ranks", "4"))


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_processes_run_side_by_side_on_their_cores(tmp_path: Path) -> None:
    """Each waits for the file of the other."""
    core = min(os.sched_getaffinity(0))
    text = (
        "import os, pathlib, sys, time\n"
        "mine, other = (pathlib.Path({folder!r}, name) for name in {names!r})\n"
        "mine.write_text(repr(os.sched_getaffinity(0)))\n"
        "end = time.monotonic() + 60\n"
        "while not other.exists():\n"
        "    assert time.monotonic() < end\n"
        "    time.sleep(0.01)\n"
    )
    commands = [program(text.format(folder=str(tmp_path), names=names)) for names in (("a", "b"), ("b", "a"))]
    before = os.sched_getaffinity(0)
    start.run_side_by_side(commands, [frozenset({core}), None])
    assert (tmp_path / "a").read_text() == repr({core})
    assert (tmp_path / "b").read_text() == repr(before)
    assert os.sched_getaffinity(0) == before


def test_failure_shows_output_and_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    waits = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).symlink_to(str(os.getpid())); time.sleep(600)"
    fails = f"import os, sys, time\nwhile not os.path.lexists({str(pid)!r}): time.sleep(0.01)\nsys.exit('no memory')"
    with pytest.raises(BuildError, match=r"(?s)status 1.*no memory$") as caught:
        start.run_side_by_side([program(fails), program(waits)], [None, None])
    assert "Its command:" in str(caught.value)
    with pytest.raises(ProcessLookupError):
        os.kill(int(os.readlink(pid)), 0)


def test_a_start_has_a_limit() -> None:
    began = time.monotonic()
    with pytest.raises(BuildError, match=r"more than 0\.1 s"):
        start.run_side_by_side([program("import time; time.sleep(600)")], [None], limit_s=0.1)
    assert time.monotonic() - began < 60
