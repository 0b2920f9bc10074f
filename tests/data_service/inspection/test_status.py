"""The JSON of a status."""

import json

import pytest

from tfdist.data_service.inspection.status import Status, parse
from tfdist.data_service.inspection.wait_report import TrainerWait

STATUS = Status(
    role="worker",
    address="node:5050",
    control_port=5051,
    tfdist="0.1.0",
    tensorflow="2.21.0",
    python="3.11.7",
    pid=12,
    started=1000.5,
    state="ready",
    work_dir_token="ab",
    tags=("west",),
    counters={"tasks": 3},
    leaving={"node:1": 5.0},
    trainers=(TrainerWait("a:1:ff", 0.25, "input", 2.0),),
    jobs={"2000": ("train", 1)},
    ended=(2000,),
    fixed_workers=True,
)


def test_text_and_back():
    assert parse(json.dumps(STATUS.to_json()).encode()) == STATUS


def test_an_unknown_field_of_a_newer_server_is_passed_over():
    assert parse(json.dumps(STATUS.to_json() | {"more": 1}).encode()) == STATUS


def test_a_server_that_knows_less_is_read():
    told = STATUS.to_json()
    del told["jobs"], told["ended"], told["fixed_workers"]
    read = parse(json.dumps(told).encode())
    assert (read.jobs, read.ended, read.fixed_workers) == ({}, (), False)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"schema": None},
        {"role": "king"},
        {"state": "sleepy"},
        {"pid": "12"},
        {"control_port": True},
        {"tags": [1]},
        {"counters": {"a": "b"}},
        {"counters": []},
        {"leaving": "node"},
        {"leaving": {"node:1": "5"}},
        {"work_dir_token": 7},
        {"trainers": {}},
        {"trainers": [7]},
        {"trainers": [{"trainer": "a", "share": 2, "measured_at": "input", "age_s": 1}]},
        {"trainers": [{"trainer": "a", "share": 1, "measured_at": "input"}]},
        {"jobs": ["train"]},
        {"ended": [True]},
        {"ended": "2000"},
        {"fixed_workers": 1},
        {"jobs": {"2000": "train"}},
        {"jobs": {"2000": ["train", True]}},
    ],
)
def test_a_wrong_field_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        parse(json.dumps(STATUS.to_json() | change).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"<html>", b'"a"', b"\xff"])
def test_what_is_no_status_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)
