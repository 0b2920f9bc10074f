"""A survey as a table."""

import dataclasses
import re

import pytest

from tfdist.data_service.inspection.advice import Advice, Load
from tfdist.data_service.inspection.passes import Pass, Reading
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.survey import Server, Survey
from tfdist.data_service.inspection.table import advice, duration, render, render_passes
from tfdist.data_service.inspection.wait_report import TrainerWait

STATUS = Status("dispatcher", "node:5050", 5051, "0.1.0", "2.21.0", "3.11.7", 12, 1000.0, "ready")


COUNTERS = {
    "tasks": 2,
    "elements_per_second": 12345.6,
    "bytes_per_second": 7.25e6,
    "full_queues": 1.5,
    "cpu_cores": 1.84,
    "cores": 4,
    "elements_total": 7,
    "wait": 0.5,
}


def survey_of(*workers):
    counters = {"workers": 2, "cpu_seconds_total": 9.5, "journal_bytes": 2e6}
    dispatcher = Server("node:5050", "ready", dataclasses.replace(STATUS, counters=counters))
    return Survey("node:5050", dispatcher, workers)


def cells(lines):
    """By column; a column begins where its head does."""
    starts = [lines[0].index(word) for word in re.split("  +", lines[0])]
    return [[line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)] for line in lines]


def test_a_line_a_server():
    worker = dataclasses.replace(STATUS, role="worker", counters=COUNTERS, tags=("west", "big"))
    found = survey_of(Server("w:1", "draining", worker), Server("longer-name:2", "dead", None, "does not answer"))
    rows = cells(render(found, 1000 + 3700).splitlines())
    measured = ["elements/s", "MB/s", "full queues", "CPU", "tags", "details"]
    figures = ["12,346", "7.2", "1.5", "1.8 of 4"]
    versions = "tfdist 0.1.0, TensorFlow 2.21.0"
    assert rows == [
        ["role", "address", "state", "since", "tasks", *measured],
        ["dispatcher", "node:5050", "ready", "1 h 1 min", *"------", f"{versions}, journal_bytes 2e+06, workers 2"],
        ["worker", "w:1", "draining", "1 h 1 min", "2", *figures, "west,big", f"{versions}, wait 0.5"],
        ["worker", "longer-name:2", "dead", *"-------", "does not answer"],
    ]


def test_a_worker_of_which_little_is_known():
    plain = dataclasses.replace(STATUS, role="worker", counters={"tasks": 3})
    assert cells(render(survey_of(Server("w:1", "ready", plain)), 1001).splitlines())[2][4:10] == ["3", *"-----"]


def test_a_line_a_pass():
    many = {f"w:{number}": 1 for number in range(6)}
    reading = Reading(
        (Pass(2000, "1000", "dynamic", {"b:1": 2, "a:1": 1}, "train", 3), Pass(2001, "", "", many)), {"c:1": "gone"}
    )
    *lines, last = render_passes(reading).splitlines()
    assert cells(lines) == [
        ["pass", "job", "repetition", "dataset", "sharding", "tasks", "workers"],
        ["2000", "train", "3", "1000", "dynamic", "3", "a:1, b:1 (2)"],
        ["2001", "-", "-", "-", "-", "6", "w:0, w:1, w:2, w:3 and 2 more"],
    ]
    assert last == "c:1 did not report its tasks: gone"


def test_nothing_is_read():
    assert render_passes(Reading((), {})) == "no dataset is being read"
    assert render_passes(Reading((), {"a:1": "gone"})).splitlines()[1] == "a:1 did not report its tasks: gone"


def test_a_line_a_trainer():
    told = (TrainerWait("a:1:ff", 0.4312, "input", 2.6), TrainerWait("longer:2:ee", 0.0, "service"))
    found = Survey("node:5050", Server("node:5050", "ready", dataclasses.replace(STATUS, trainers=told)), ())
    lines = render(found, 1000).splitlines()
    assert lines[2:] == [
        "",
        "trainer      waits  measured at the  told",
        "a:1:ff       43.1%  input            2 s ago",
        "longer:2:ee  0.0%   service          0 s ago",
    ]


def test_advice():
    loads = (Load("w:1", "ready", 0.987), Load("longer:1", "dead", None))
    told = (TrainerWait("a:1:ff", 0.4312, "input"),)
    found = advice(Advice("input-bound", 1, 2, False, ("One sentence.", "Another."), told, loads))
    assert found.splitlines() == [
        "trainer  waits  measured at the  told",
        "a:1:ff   43.1%  input            0 s ago",
        "",
        "worker    state  busy",
        "w:1       ready  98.7%",
        "longer:1  dead   -",
        "",
        "One sentence.",
        "Another.",
    ]
    assert advice(Advice("unknown", 0, None, False, ("Nothing.",), (), ())) == "worker  state  busy\n\nNothing."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"), (90061, "1 d 1 h")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
