"""Tests of tfdist.launch.supervisor.crew, in processes of their own, since it forks and takes their signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.launch.supervisor.crew import Crew
from tfdist.protocol.member import NEWCOMER_VARIABLE
from tfdist.system.rank import job_place

PROGRAM = """
import json, os, sys, time
from tfdist.launch.supervisor import crew
def supervise(environment):
    rank = int(environment["TFDIST_RANK"])
    with open(f"{sys.argv[1]}/new{rank}", "w") as file:
        json.dump([environment["A"], sorted(os.sched_getaffinity(0)), os.getpid()], file)
    os.rename(f"{sys.argv[1]}/new{rank}", f"{sys.argv[1]}/{rank}")
    BODY
    return rank
sys.exit(crew.run(crew.Crew(1, 3, 5), supervise, {"A": "b"}))
"""


def start(folder: Path, body: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM.replace("BODY", body), folder], stderr=subprocess.PIPE)


def test_newcomers_say_so_and_have_places_of_their_own() -> None:
    crew = Crew(4, 2, 6, (0, 3))
    assert Crew.parse(crew.words()) == crew
    found = [crew.variables(number) for number in range(2)]
    assert [tuple(each[name] for name in job_place.OWN) for each in found] == [
        ("4", "6", "0", "4"),
        ("5", "6", "3", "4"),
    ]
    assert [each[NEWCOMER_VARIABLE] for each in found] == ["1", "1"]
    assert NEWCOMER_VARIABLE not in Crew(4, 2, 6).variables(0)


def test_places() -> None:
    crew = Crew.parse(["2", "2", "5"])
    assert crew == Crew(2, 2, 5)
    assert [tuple(crew.variables(local)[name] for name in job_place.OWN) for local in range(2)] == [
        ("2", "5", "0", "2"),
        ("3", "5", "1", "2"),
    ]


def test_each_rank_runs_and_the_highest_status_counts(tmp_path: Path) -> None:
    done = start(tmp_path, "")
    assert done.wait(60) == 3, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in (1, 2, 3)]
    assert {given for given, _, _ in told} == {"b"}
    assert len({process for _, _, process in told}) == 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(tmp_path: Path, wait_until: Callable[..., None], signum: int) -> None:
    running = start(tmp_path, "time.sleep(1000)")
    wait_until(lambda: len(list(tmp_path.glob("[0-9]"))) == 3, what="the ranks")
    running.send_signal(signum)
    assert running.wait(60) == 128 + signum


def test_killed_rank_counts_as_its_signal(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    body = "while rank == 2 or not os.path.exists(f'{sys.argv[1]}/go'): time.sleep(0.01)"
    running = start(tmp_path, body)
    wait_until(lambda: len(list(tmp_path.glob("[0-9]"))) == 3, what="the ranks")
    os.kill(json.loads((tmp_path / "2").read_text())[2], signal.SIGKILL)
    (tmp_path / "go").touch()
    assert running.wait(60) == 128 + signal.SIGKILL
