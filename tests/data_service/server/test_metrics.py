"""The text for Prometheus."""

import dataclasses
import re

import pytest

from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.data_service.server.metrics import HELP, render

STATUS = Status("worker", "node:5050", 5051, "0.1.0", "2.21.0", "3.11.7", 12, 1000.5, "ready")
NAME = r"tfdist_data_service_([a-z][a-z0-9_]*)"
SAMPLE = re.compile(NAME + r'\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (-?[0-9.]+(?:e[-+]?[0-9]+)?)')
ABOUT = re.compile(rf"# (HELP|TYPE) {NAME} (.+)")


def parse(text):
    """Kind, explanation and value by name; as strict as the text format is written down."""
    assert text.endswith("\n") and not text.endswith("\n\n")
    kinds, explained, values = {}, {}, {}
    for line in text.splitlines():
        if found := ABOUT.fullmatch(line):
            known = {"HELP": explained, "TYPE": kinds}[found[1]]
            # Each comes once, and before the value.
            assert found[2] not in known and found[2] not in values
            known[found[2]] = found[3]
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert kinds[found[1]] in ("counter", "gauge") and found[1] not in values
        # A counter is named as one, and nothing else is.
        assert (kinds[found[1]] == "counter") == found[1].endswith("_total")
        values[found[1]] = float(found[3])
    assert set(kinds) == set(values) and set(explained) <= set(values)
    return kinds, explained, values


def sample(status, name):
    lines = [line for line in render(status).splitlines() if line.startswith(f"tfdist_data_service_{name}{{")]
    assert len(lines) == 1
    return lines[0]


def test_every_line_is_of_the_text_format():
    counters = {"tasks": 3, "elements_total": 5.0, "bytes_per_second": 1.5e-7, "cpu_seconds_total": 1e22, "new": 1}
    kinds, explained, values = parse(render(dataclasses.replace(STATUS, counters=counters)))
    assert {name: values[name] for name in counters} == counters
    assert set(values) - set(explained) == {"new"}
    assert explained["tasks"] == HELP["tasks"] and kinds["tasks"] == "gauge"


@pytest.mark.parametrize("name", sorted(HELP))
def test_an_explanation_is_a_line_without_escapes(name):
    assert re.fullmatch(r"[A-Z][^\\\n]+\.", HELP[name])


@pytest.mark.parametrize(("state", "value"), [("ready", "1"), ("draining", "0"), ("starting", "0")])
def test_ready(state, value):
    line = sample(dataclasses.replace(STATUS, state=state), "ready")
    assert f'state="{state}"' in line and line.endswith(f" {value}")


def test_counters_and_gauges():
    text = render(dataclasses.replace(STATUS, counters={"tasks": 3, "elements_total": 5}))
    assert "# TYPE tfdist_data_service_elements_total counter" in text
    assert "# TYPE tfdist_data_service_tasks gauge" in text
    assert 'tfdist_data_service_elements_total{role="worker",address="node:5050"} 5' in text


def test_a_label_cannot_break_out():
    line = sample(dataclasses.replace(STATUS, tensorflow='2"\n\\'), "info")
    assert 'tensorflow="2\\"\\n\\\\"' in line


def test_waiting_of_each_trainer():
    trainers = (TrainerWait("a:1:ff", 0.25, "input", 2.0), TrainerWait("b:2:ee", 1.0, "service"))
    lines = [line for line in render(dataclasses.replace(STATUS, trainers=trainers)).splitlines() if "wait" in line]
    name, origin = "tfdist_data_service_trainer_wait_ratio", 'role="worker",address="node:5050"'
    assert lines == [
        f"# HELP {name} {HELP['trainer_wait_ratio']}",
        f"# TYPE {name} gauge",
        f'{name}{{{origin},trainer="a:1:ff",measured_at="input"}} 0.25',
        f'{name}{{{origin},trainer="b:2:ee",measured_at="service"}} 1.0',
    ]
    assert all(SAMPLE.fullmatch(line) for line in lines[2:])
    assert "wait" not in render(STATUS)


@pytest.mark.parametrize("name", ["Tasks", "a-b", "1a", "", "a b"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ValueError, match="lowercase letters"):
        render(dataclasses.replace(STATUS, counters={name: 1}))
