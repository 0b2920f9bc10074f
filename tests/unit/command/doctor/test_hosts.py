"""Findings about several hosts, and how their answers are read."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from tfdist.command.doctor import child, command, hosts, there
from tfdist.command.doctor.finding import BROKEN, NOTE, OK, Finding
from tfdist.command.doctor.hosts import Told
from tfdist.errors import ConfigError


@pytest.fixture
def facts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Those of this machine."""
    monkeypatch.setattr(there, "CLOCKS", 1)
    there.main()
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert abs(second["clock_s"] - time.time()) < 60
    return dict(first["facts"])


def _found(told: dict[str, Told]) -> dict[str, Finding]:
    return {each.name: each for each in hosts.findings(told)}


def test_same_hosts(facts: dict[str, str]) -> None:
    found = _found({"a": Told(facts, 0.5), "b": Told(facts, -0.5)})
    assert {each.state for each in found.values()} == {OK}
    assert found.keys() == {*facts, "clocks"}
    assert found["path of Python"].text == f"{sys.executable} on all 2 hosts"


@pytest.mark.parametrize("name", ["tfdist", "Python", "TensorFlow", "Keras", "MPI", "path of Python", "working folder"])
def test_fact_that_differs(facts: dict[str, str], name: str) -> None:
    found = _found({"a": Told(facts, 0), "b": Told(facts | {name: "other"}, 0)})
    assert [each.name for each in found.values() if each.state == BROKEN] == [name]
    assert found[name].text == f"a: {facts[name]}\nb: other"
    assert found[name].remedy


def test_clock_that_differs(facts: dict[str, str]) -> None:
    found = _found({"a": Told(facts, 0.1), "b": Told(facts, 3.25)})["clocks"]
    assert (found.state, found.text) == (NOTE, "a: +0.1 s\nb: +3.2 s")
    assert "chrony" in found.remedy


def test_allreduce_between_hosts() -> None:
    report = {"bytes": 2 << 20, "seconds": 0.001, "device": "CPU:0"}
    assert "between a and b, 2 MiB on CPU:0 in 1.00 ms: 2.10 GB/s" in hosts.allreduce(report, ("a", "b")).text
    failed = hosts.allreduce("it ended", ("a", "b"))
    assert (failed.state, failed.text) == (BROKEN, "it ended")
    assert "--network-interfaces" in failed.remedy


ANSWERS = """
import json, sys, time
assert sys.argv[1:5] == ["-np", "2", "-H", "a:1,b:1"], sys.argv
assert sys.argv[5] == "--tcp"
for rank, ahead in ((0, 0), (1, 50)):
    print(f"[{rank}]", json.dumps({"facts": {"name": rank}}))
    for late in (9, 0, 4):
        print(f"[{rank}]", json.dumps({"clock_s": time.time() + ahead - late}), flush=True)
print("noise")
"""


def test_answers_of_ranks() -> None:
    told = child.told(["a", "b"], ["--tcp"], (sys.executable, "-c", ANSWERS))
    assert isinstance(told, dict), told
    assert (told["a"].facts, told["b"].facts) == ({"name": 0}, {"name": 1})
    assert -3 < told["a"].ahead_s <= 0
    assert 47 < told["b"].ahead_s <= 50


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import sys; sys.exit('no way to b')", "a job on a, b ended with exit status 1:\nno way to b"),
        ("print('[0] {\"facts\": {}}')", "a job on a, b ended with exit status 0"),
        ("import signal; print(flush=True); signal.pause()", "a job on a, b took longer than 0.5 seconds"),
    ],
)
def test_job_that_fails(script: str, text: str) -> None:
    assert child.told(["a", "b"], (), (sys.executable, "-c", script), 0.5 if "pause" in script else 60) == text


def test_nothing_is_summed_where_hosts_differ(
    facts: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    told: Any = {"a": Told(facts, 0), "b": Told(facts | {"Keras": "2"}, 0)}
    monkeypatch.setattr(child, "told", lambda names, words: told)
    monkeypatch.setattr(child, "between", lambda pair, words: pytest.fail("no all-reduce can work"))
    assert command.main(["-H", "a:4,b:4", "--run-args=--tcp"]) == 1
    assert "broken: Keras" in capsys.readouterr().out
    told = "it ended"
    assert command.main(["-H", "a:4,b:4"]) == 1
    shown = capsys.readouterr().out
    assert "it ended" in shown and "ssh b true" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-H", "a:2"], "-H a:2 names one host; expected two or more"),
        (["-H", "a:x,b"], "'x' is not a number of slots"),
        (["--run-args=--tcp"], "--run-args is for -H HOSTS"),
    ],
)
def test_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command.main(words)
