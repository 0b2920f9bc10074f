"""From files of a step and a cluster to rows, table, CSV, JSON, picture; the planner is a stand-in but in the last."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.bench import option
from tfdist.command.bench.scale import scale, scale_step
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_step import Layer, Published, Step
from tfdist.native import library

CLUSTER = Cluster("pairs", 4, 2, 1e9, 1e6)
STEP = Step(
    *("VGG16", 224, 64, 1.0),
    layers=(Layer("dense", 1.0, (4_000_000, 4000)), Layer("convolution", 2.0, (40_000,))),
    published=(Published(8, 0.625, "measured"),),
)
CLUSTER_FILE = {
    "name": "pairs",
    "hosts": 4,
    "gpus_per_host": 2,
    "intra_bandwidth_gb_s": 1,
    "inter_bandwidth_gb_s": 0.001,
    "intra_latency_us": 0,
    "inter_latency_us": 0,
    "software_latency_us": 0,
    "memory_bandwidth_gb_s": 100,
}


class Alone:
    """A planner that lets every tensor travel alone, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[int], int]] = []

    def __call__(self, dtypes: Sequence[str], sizes: Sequence[int], threshold: int) -> list[list[int]]:
        self.asked.append((list(dtypes), list(sizes), threshold))
        return [[index] for index in range(len(sizes))]


def options(*words: str) -> option.Scale:
    parsed = option.parse(["scale", "--step", "a.json", "--cluster", "c.json", *words])
    assert isinstance(parsed, option.Scale)
    return parsed


def test_a_row_for_each_combination_in_order() -> None:
    other = replace(STEP, model="ResNet101", published=())
    chosen = options("--gpus", "1,8", "--compression", "none,fp16", "--schedule", "hierarchical,flat")
    rows = scale.predictions([STEP, other], CLUSTER, chosen, 100, Alone())
    kinds = [(row["model"], row["compression"], row["schedule"], row["gpus"]) for row in rows]
    assert kinds == [
        (model, compression, schedule, gpus)
        for model in ("VGG16", "ResNet101")
        for compression in ("none", "fp16")
        for schedule in ("hierarchical", "flat")
        for gpus in (1, 8)
    ]
    assert [row["published_efficiency"] for row in rows[:4]] == [None, 0.625, None, 0.625]
    assert {row["published_efficiency"] for row in rows[8:]} == {None}


def test_without_numbers_of_gpus_those_of_the_cluster() -> None:
    rows = scale.predictions([STEP], replace(CLUSTER, gpus_per_host=6), options(), 100, Alone())
    assert [row["gpus"] for row in rows] == [1, 2, 4, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072]


def test_numbers_of_a_row() -> None:
    """8 GPUs on 4 hosts: 2 (3/4) of the bytes through each card, and 2 (1/2) of them at 1 GB/s inside."""
    (row,) = scale.predictions([STEP], CLUSTER, options("--gpus", "8", "--no-overlap"), 100, Alone())
    assert (row["hosts"], row["buckets"], row["described"], row["overlap"]) == (4, 3, True, False)
    assert row["communication_ms"] == pytest.approx(1.5 * 4044 + 4.044)
    assert row["exposed_ms"] == pytest.approx(row["communication_ms"])
    assert row["computing_ms"] == 4000
    assert row["step_ms"] == pytest.approx(4000 + row["communication_ms"])
    assert row["images_per_second"] == pytest.approx(8 * 64 / row["step_ms"] * 1e3)
    assert row["efficiency"] == pytest.approx(4000 / row["step_ms"])


def test_overlap_hides_what_it_can() -> None:
    """The dense layer's gradients travel from 2 s on, for longer than the 2 s that are left to compute."""
    (row,) = scale.predictions([STEP], CLUSTER, options("--gpus", "8"), 100, Alone())
    assert row["overlap"] is True
    assert row["exposed_ms"] == pytest.approx(row["communication_ms"] - 2000)


def test_the_planner_sees_backward_order_and_bytes_in_memory() -> None:
    planner = Alone()
    scale.predictions([STEP], CLUSTER, options("--gpus", "2", "--compression", "none,fp16"), 77, planner)
    assert planner.asked == [
        (["float32"] * 3, [4_000_000, 4000, 40_000], 77),
        (["float32"] * 3, [4_000_000, 4000, 40_000], 77),
    ]


def test_more_hosts_than_described_are_marked() -> None:
    few, many = scale.predictions([STEP], CLUSTER, options("--gpus", "8,16"), 100, Alone())
    assert (few["described"], many["described"]) == (True, False)
    assert scale._cells(few, compared=True)[0] == "8"
    assert scale._cells(many, compared=True)[0] == "16 *"
    assert scale._cells(few, compared=True)[-1] == "62.5 %"
    assert scale._cells(many, compared=True)[-1] == ""


def files(folder: Path) -> list[str]:
    scale_step.write(folder / "step.json", STEP)
    (folder / "cluster.json").write_text(json.dumps(CLUSTER_FILE))
    return ["scale", "--step", f"{folder}/step.json", "--cluster", f"{folder}/cluster.json"]


def scaled(*words: str) -> option.Scale:
    parsed = option.parse(words)
    assert isinstance(parsed, option.Scale)
    return parsed


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Alone:
    stand_in = Alone()
    monkeypatch.setattr(library, "plan_buckets", stand_in)
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", str(3 << 20))
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)
    return stand_in


def test_run_prints_a_table(tmp_path: Path, planner: Alone, capsys: Any) -> None:
    scale.run(scaled(*files(tmp_path), "--gpus", "1,8,16", "--no-overlap"))
    assert [asked[2] for asked in planner.asked] == [3 << 20]
    text = capsys.readouterr().out
    assert "tfdist bench scale: pairs, buckets of 3MB" in text
    assert "VGG16, batch 64, hierarchical, without overlap" in text
    head, *lines = text.split("without overlap\n")[1].splitlines()[:4]
    assert head.split()[-1] == "published"
    assert lines[0].split() == ["1", "1", "3", "4000.0", "4000.0", "0.0", "0.0", "16", "100.0", "%"]
    assert lines[1].split()[-4:] == ["39.7", "%", "62.5", "%"]
    assert "* : more than the 4 hosts" in text


def test_run_writes_files(tmp_path: Path, planner: Alone) -> None:
    pytest.importorskip("matplotlib")
    written = [f"--csv={tmp_path}/a.csv", f"--json={tmp_path}/a.json", f"--plot={tmp_path}/a.png"]
    scale.run(scaled(*files(tmp_path), "--gpus", "1,8,16", *written))
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["gpus"] for row in rows] == ["1", "8", "16"]
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["threshold_bytes"] == 3 << 20
    assert [row["efficiency"] for row in document["rows"]] == [float(row["efficiency"]) for row in rows]
    assert document["cluster"]["hosts"] == 4
    assert document["steps"][0]["layers"][1]["gradients"] == [40_000]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_plan_is_that_of_the_library(tmp_path: Path, capsys: Any) -> None:
    """4 MB travel alone; 4 kB and 40 kB together, or not."""
    buckets = []
    for threshold in ("1MB", "4KB"):
        words = [*files(tmp_path), "--gpus", "8", "--threshold", threshold, f"--json={tmp_path}/a.json"]
        scale.run(scaled(*words))
        buckets.append(json.loads((tmp_path / "a.json").read_text())["rows"][0]["buckets"])
    assert buckets == [2, 3]
    assert "buckets of 1MB" in capsys.readouterr().out
