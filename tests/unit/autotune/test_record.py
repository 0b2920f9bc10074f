"""The CSV log, the JSON result and the report."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdist.autotune import record
from tfdist.autotune.search import Rival, Verdict
from tfdist.errors import ConfigError
from tfdist.native.knobs import KIB, MIB, Setting

JOB = record.Job("0.1.0", 4, 2, 10, 12345)
OTHER = Setting(16 * MIB, 256 * KIB, "fp16", True, "nccl")


def test_log_has_a_row_a_sample(tmp_path: Path, default: Setting) -> None:
    path = tmp_path / "log.csv"
    path.write_text("of an earlier job\n")
    log = record.Log(path)
    log.add("explore", default, 0.0125)
    log.add("compare", OTHER, 0.011)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == record.COLUMNS
    assert list(rows[0].values()) == ["1", "explore", "8388608", "131072", "none", "False", "off", "12.5000"]
    assert list(rows[1].values()) == ["2", "compare", "16777216", "262144", "fp16", "True", "nccl", "11.0000"]


def test_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TFDIST_AUTOTUNE_LOG=.*no/log.csv cannot be written.*an existing folder"):
        record.Log(tmp_path / "no" / "log.csv")


def test_result_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert record.load(path, JOB) == (None, "")
    record.save(path, JOB, OTHER)
    assert record.load(path, JOB) == (OTHER, "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "0.2.0"}, "version is '0.1.0' there and '0.2.0' here"),
        ({"size": 3}, "size is 4 there and 3 here"),
        ({"hosts": 1}, "hosts is 2 there and 1 here"),
        ({"tensors": 9, "bytes": 1}, "tensors is 10 there and 9 here; bytes is 12345 there and 1 here"),
    ],
)
def test_result_of_another_job_does_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = tmp_path / "result.json"
    record.save(path, JOB, OTHER)
    assert record.load(path, replace(JOB, **changes)) == (None, reason)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: "{",
        lambda document: "[]",
        lambda document: json.dumps({"job": document["job"]}),
        lambda document: json.dumps(document | {"setting": document["setting"] | {"chunk": "many"}}),
        lambda document: json.dumps(document | {"setting": document["setting"] | {"thread": 1}}),
        lambda document: json.dumps(document | {"setting": document["setting"] | {"more": 1}}),
    ],
)
def test_what_is_no_result_is_an_error(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "result.json"
    record.save(path, JOB, OTHER)
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ConfigError, match=r"TFDIST_AUTOTUNE_RESULT=.*is not an autotuning result.*Delete it"):
        record.load(path, JOB)


def test_result_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TFDIST_AUTOTUNE_RESULT=.*cannot be written"):
        record.save(tmp_path, JOB, OTHER)
    with pytest.raises(ConfigError, match=r"TFDIST_AUTOTUNE_RESULT=.*cannot be read"):
        record.load(tmp_path, JOB)


def test_command_names_what_is_not_the_default(default: Setting) -> None:
    assert record.command(default, default, 3) == "tfdistrun -np 3 COMMAND"
    assert record.command(OTHER, default, 2) == (
        "TFDIST_FUSION_THRESHOLD=16777216 TFDIST_SHARED_MEMORY=2097152 TFDIST_COMPRESSION=fp16 "
        "TFDIST_COMMUNICATION_THREAD=1 TFDIST_HIERARCHICAL_ALLREDUCE=nccl tfdistrun -np 2 COMMAND"
    )


def test_report(default: Setting) -> None:
    rivals = (Rival(default, 0.0123, 0.0, False), Rival(OTHER, 0.0111, 0.1, True))
    assert record.report(Verdict(rivals, rivals[1]), 2).splitlines() == [
        "autotune: steps take 10.0% less time than with the default.",
        "  fusion KiB  chunk KiB  compression  thread  hierarchy  step ms  saves",
        "  8192        128        none         off     off        12.30    default",
        "  16384       256        fp16         on      nccl       11.10    +10.0%   kept",
        "To start with this setting:",
        f"  {record.command(OTHER, default, 2)}",
    ]
    assert "no setting beats the default" in record.report(Verdict(rivals, rivals[0]), 2)
