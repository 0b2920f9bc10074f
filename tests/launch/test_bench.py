"""`tfdist bench` for real: its benchmarks, alone and on two ranks, with settings that take a second or two."""

from __future__ import annotations

import csv
import json
import os
import re
from typing import Any

import pytest

COMMAND = ("-m", "tfdist.command", "bench")
ALLREDUCE = (
    "allreduce --sizes 4KB,257KB --tensors 3 --dtypes float32,bfloat16 --compression none,fp16 --rounds 4".split()
)
TRAIN = "train --model digits --image-size 8 --batch-size 2 --compression fp16 --steps 3 --rounds 2 --warmup 1".split()
FILES = "--csv rows.csv --json all.json".split()
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def run(launch: Any, ranks: int, *words: str) -> Any:
    """Alone: as a process of its own, without a launcher."""
    if ranks == 1:
        return launch.end(launch.start(*words, variables=QUIET, program=COMMAND))
    return launch.run("-np", str(ranks), "python", *COMMAND, *words, variables=QUIET)


def results(launch: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
    with (launch.folder / "rows.csv").open(newline="") as file:
        return list(csv.DictReader(file)), json.loads((launch.folder / "all.json").read_text())


def check_reduction(row: dict[str, str], ranks: int) -> None:
    median, least = float(row["median_us"]), float(row["min_us"])
    assert (int(row["ranks"]), int(row["rounds"]), int(row["tensors"])) == (ranks, 4, 3)
    assert 0 < least <= median
    assert float(row["algbw_gb_s"]) == pytest.approx(int(row["bytes"]) / median / 1e3)
    assert float(row["busbw_gb_s"]) == pytest.approx(float(row["algbw_gb_s"]) * 2 * (ranks - 1) / ranks)
    assert float(row["memcpy_ratio"]) == pytest.approx(median / float(row["memcpy_us"]))


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slice("launch")), 2])
def test_allreduce(launch: Any, ranks: int) -> None:
    done = run(launch, ranks, *ALLREDUCE, *FILES)
    assert done.code == 0, done.stderr
    assert ("tfdistrun -np 2 tfdist bench allreduce" in done.stdout) == (ranks == 1)
    assert "bfloat16 is sent uncompressed" in done.stdout
    rows, document = results(launch)
    kinds = [(int(row["bytes"]), row["dtype"], row["compression"]) for row in rows]
    row_of_size = [("float32", "none"), ("float32", "fp16"), ("bfloat16", "none")]
    assert kinds == [(size, *kind) for size in (4096, 257 * 1024) for kind in row_of_size]
    assert len(re.findall(r"^(?:\[0\] )?(?:4|257)KB ", done.stdout, re.MULTILINE)) == len(rows)
    for row in rows:
        check_reduction(row, ranks)
    assert [row["median_us"] for row in document["rows"]] == [float(row["median_us"]) for row in rows]
    assert document["options"]["sizes"] == [4096, 257 * 1024]
    assert document["machine"]["cores"] == os.cpu_count()


def check_training(row: dict[str, Any], ranks: int) -> None:
    assert (row["ranks"], row["steps"]) == (ranks, 6)
    assert 0 < row["min_ms"] <= row["median_ms"]
    assert row["images_per_second"] == pytest.approx(ranks * row["images_per_second_rank"])
    assert row["images_per_second_half_width"] > 0
    assert 0 < row["images_per_second"] <= ranks * 2 / (row["min_ms"] / 1e3)


@pytest.mark.slice("launch")
@pytest.mark.parametrize("ranks", [1, 2])
def test_train(launch: Any, ranks: int) -> None:
    done = run(launch, ranks, *TRAIN, "--compare-single", *FILES)
    assert done.code == 0, done.stderr
    assert "efficiency: " in done.stdout and "images/s" in done.stdout
    rows, document = results(launch)
    together, alone = document["rows"]
    assert [row["run"] for row in rows] == [f"{ranks} rank{'s' * (ranks > 1)}", "1 process alone"]
    check_training(together, ranks)
    check_training(alone, 1)
    assert alone["communication_ms"] == 0 < together["communication_ms"]
    assert document["efficiency"]["of_medians"] == pytest.approx(alone["median_ms"] / together["median_ms"])
    assert 0 <= document["waiting_core_share"] < 1


@pytest.mark.slice("launch")
def test_eager_sums_of_integers_on_three_ranks(launch: Any) -> None:
    """Three ranks, on which an average would be rounded, and the forms that the other tests leave out."""
    words = "allreduce --sizes 4KB --tensors 1,2 --dtypes int32,float64 --compression none --op sum --eager".split()
    done = run(launch, 3, *words, "--seconds", "0.01", *FILES)
    assert done.code == 0, done.stderr
    rows, document = results(launch)
    assert [(row["tensors"], row["dtype"]) for row in rows] == [
        (tensors, dtype) for tensors in ("1", "2") for dtype in ("int32", "float64")
    ]
    assert all(int(row["rounds"]) >= 5 for row in rows)
    assert document["options"]["eager"] is True


@pytest.mark.slice("launch")
def test_scale_of_a_step_that_was_recorded_here(launch: Any) -> None:
    """Recorded by a clock and from a throughput; predicted for a network that costs nothing, and for a slow one."""
    record = "scale --record digits --image-size 8 --batch-size 2 --output".split()
    for words in (["clock.json", "--steps", "3", "--warmup", "1"], ["rate.json", "--throughput", "100"]):
        done = run(launch, 1, *record, *words)
        assert done.code == 0, done.stderr
        assert f"written to {words[0]}" in done.stdout
    description = dict.fromkeys(("intra_latency_us", "inter_latency_us", "software_latency_us"), 0)
    description |= {"intra_bandwidth_gb_s": 1e9, "memory_bandwidth_gb_s": 1e9, "hosts": 4, "gpus_per_host": 2}
    efficiencies = []
    for rate in (1e9, 1e-3):
        cluster = json.dumps(description | {"name": "four hosts", "inter_bandwidth_gb_s": rate})
        (launch.folder / "cluster.json").write_text(cluster)
        words = "scale --step rate.json --cluster cluster.json --gpus 1,2,8 --no-overlap".split()
        done = run(launch, 1, *words, *FILES)
        assert done.code == 0, done.stderr
        assert "four hosts" in done.stdout and "digits, batch 2, hierarchical" in done.stdout
        efficiencies.append([row["efficiency"] for row in results(launch)[1]["rows"]])
    fast, slow = efficiencies
    assert fast == pytest.approx([1, 1, 1])
    # 2 images at 100 images/s are 20 ms; 2 (3/4) of 69,792 bytes pass each host's card at 1 MB/s, and the 24 bytes of
    # each of its two headers, to each of three other hosts.
    assert slow == pytest.approx([1, 1, 20 / (20 + 1.5 * 69.792 + 3 * 2 * 0.024)])


def test_bad_options_are_told(launch: Any) -> None:
    done = run(launch, 2, "train", "--model", "InceptionV3", "--image-size", "64")
    assert done.code == 2
    assert "too small for InceptionV3, which needs images of 75 pixels or more" in done.stderr
    assert "Traceback" not in done.stderr
