"""Predictions that can be computed by hand, what must hold for all of them, their files, and Horovod's paper."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.command.bench import option, scale
from tfdist.command.bench.measure.request import SCHEDULES
from tfdist.command.bench.scale import Cluster, Layer, Published, Step, allreduce_s, predict
from tfdist.errors import ConfigError
from tfdist.native import library

ROOT = Path(__file__).resolve().parents[4]
INFINITE = float("inf")
# 1 ms inside, 10 ms between hosts, no software; 100 bytes a second inside, 10 between.
SLOW = Cluster("slow", 8, 4, 100, 10, 0.001, 0.01, 0, INFINITE)
# Nothing costs anything.
FREE = Cluster("free", 1024, 4, INFINITE, INFINITE, 0, 0, 0, INFINITE)
MB = 1_000_000  # beside which a header is nothing
# Two hosts of one GPU at 10 MB/s: a ring of two takes size / 10 seconds.
PAIR = replace(FREE, hosts=2, gpus_per_host=1, inter_bandwidth=10 * MB)
# 1 s forward; three layers of 2, 3 and 4 s backward, of which the first makes two gradients; 10 images.
STEP = Step(
    "small", 32, 10, 1.0, (Layer("c", 2.0, (100 * MB, 20 * MB)), Layer("b", 3.0, ()), Layer("a", 4.0, (60 * MB,)))
)
ALONE = [[0], [1], [2]]
CLUSTER_FILE: dict[str, Any] = {
    "name": "pairs",
    "hosts": 4,
    "gpus_per_host": 2,
    "intra_bandwidth_gb_s": 1,
    "inter_bandwidth_gb_s": 0.001,
    "intra_latency_us": 5,
    "inter_latency_us": 7.5,
    "software_latency_us": 0,
    "memory_bandwidth_gb_s": 100,
    "sources": {"hosts": "counted"},
}
STEP_FILE: dict[str, Any] = {
    "model": "VGG16",
    "image_size": 224,
    "batch_size": 64,
    "forward_ms": 1000,
    "layers": [
        {"name": "dense", "backward_ms": 1000, "gradient_bytes": [4_000_000, 4000]},
        {"name": "convolution", "backward_ms": 2000, "gradient_bytes": [40_000]},
    ],
    "published": [{"gpus": 8, "efficiency": 0.625, "source": "measured"}],
}


def times(
    step: Step, plan: Any, cluster: Cluster, gpus: int, compression: str = "none", overlap: bool = True
) -> tuple[float, ...]:
    """Seconds of the step, of communication, and of what of it is exposed."""
    row = predict(step, plan, cluster, gpus, compression, "hierarchical", overlap)
    assert row["efficiency"] == pytest.approx(step.seconds / row["step_ms"] * 1e3)
    assert row["images_per_second"] == pytest.approx(gpus * step.batch_size / row["step_ms"] * 1e3)
    return tuple(row[name] / 1e3 for name in ("step_ms", "communication_ms", "exposed_ms"))


@pytest.mark.parametrize(
    ("cluster", "gpus", "size", "schedule", "seconds"),
    [
        # A ring inside: 6 messages of 50 bytes.
        *((SLOW, 4, 200, schedule, 6 * 0.501) for schedule in SCHEDULES),
        # 3 hosts of 4: the same in two halves; between them 4 rings of 3 with 50 bytes at 2.5 bytes/s.
        (SLOW, 12, 200, "hierarchical", 6 * 0.501 + 4 * (0.01 + 50 / 3 / 2.5)),
        # 22 messages of 200 / 12 bytes at the network's rate; 4 of them leave a host.
        (SLOW, 12, 200, "flat", 22 * 200 / 12 / 10 + 4 * 0.01 + 18 * 0.001),
        # 8 hosts of 4, 4 bytes: a ring has 14 messages of 1/8 byte, a tree 6 of 1 byte, which start less often.
        (replace(SLOW, intra_latency_s=0, inter_latency_s=1), 32, 4, "hierarchical", 6 / 100 + 6 * (1 + 1 / 2.5)),
        # One GPU a host: the ring between hosts.
        *((replace(SLOW, gpus_per_host=1), 3, 60, schedule, 4 * (0.01 + 2)) for schedule in SCHEDULES),
        # Latencies alone, 0.1 s of software in each: 6 messages inside and 6 of a tree; 14 and 48 of the flat ring.
        (
            replace(SLOW, intra_bandwidth=INFINITE, inter_bandwidth=INFINITE, software_latency_s=0.1),
            32,
            1e12,
            "hierarchical",
            6 * 0.101 + 6 * 0.11,
        ),
        (
            replace(SLOW, intra_bandwidth=INFINITE, inter_bandwidth=INFINITE, software_latency_s=0.1),
            32,
            1e12,
            "flat",
            14 * 0.11 + 48 * 0.101,
        ),
        # Without latencies, 2 (h - 1) / h of the bytes pass each network card.
        (replace(FREE, inter_bandwidth=3e9), 512, 600e6, "hierarchical", 2 * 127 / 128 * 0.2),
        (replace(FREE, inter_bandwidth=3e9), 512, 600e6, "flat", 2 * 511 / 512 * 0.2),
        *(
            (cluster, gpus, size, schedule, 0)
            for schedule in SCHEDULES
            for cluster, gpus, size in ((SLOW, 1, 1e9), (SLOW, 32, 0), (FREE, 32, 1e12))
        ),
    ],
)
def test_allreduce_by_hand(cluster: Cluster, gpus: int, size: float, schedule: str, seconds: float) -> None:
    assert allreduce_s(cluster, gpus, size, schedule) == pytest.approx(seconds)


@pytest.mark.parametrize(("gpus", "place"), [(1, (1, 1)), (3, (1, 3)), (4, (1, 4)), (8, (2, 4)), (4096, (1024, 4))])
def test_places(gpus: int, place: tuple[int, int]) -> None:
    assert SLOW.place(gpus) == place


def test_hosts_that_are_not_full_are_refused() -> None:
    with pytest.raises(ConfigError, match="6 GPUs do not fill hosts of 4; use a multiple of 4"):
        SLOW.place(6)


@pytest.mark.parametrize(
    ("local", "counts"),
    [
        *((local, [1 << power for power in range(13)]) for local in (1, 4)),
        (6, [1, 2, 4, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072]),
    ],
)
def test_counts_fill_hosts(local: int, counts: list[int]) -> None:
    assert replace(SLOW, gpus_per_host=local).counts() == counts


@pytest.mark.parametrize(
    ("gpus", "messages", "rounds"),
    [(1, 0, 0), (2, 1, 1), (8, 7, 1), (9, 5, 2), (16, 6, 2), (17, 7, 3), (64, 9, 3), (512, 13, 5)],
)
def test_messages_to_agree(gpus: int, messages: int, rounds: int) -> None:
    """A round is a latency, and the software of its messages; each rank gets a header of 24 bytes from every other."""
    alone = replace(FREE, hosts=512, gpus_per_host=1, inter_latency_s=1.0, software_latency_s=0.01)
    found = scale.agreement(alone, gpus)
    assert found.messages == messages
    assert found.seconds == pytest.approx(rounds + 0.01 * messages)
    slow = scale.agreement(replace(FREE, hosts=512, gpus_per_host=1, inter_bandwidth=24), gpus)
    assert slow.seconds == pytest.approx(gpus - 1)


@pytest.mark.parametrize(
    ("gpus", "messages", "rounds", "in_memory"),
    [(1, 0, 0, 0), (3, 0, 0, 1), (4, 0, 0, 1), (8, 1, 1, 2), (32, 7, 1, 2), (36, 5, 2, 2), (64, 6, 2, 2)],
)
def test_ranks_of_a_host_agree_in_memory(gpus: int, messages: int, rounds: int, in_memory: int) -> None:
    """One rank of each host sends, and then has the card of its host alone."""
    cluster = replace(FREE, inter_latency_s=1.0, software_latency_s=0.01)
    found = scale.agreement(cluster, gpus)
    assert found.messages == messages
    assert found.seconds == pytest.approx(rounds + 0.01 * (messages + in_memory))
    hosts, local = cluster.place(gpus)
    slow = scale.agreement(replace(FREE, inter_bandwidth=24), gpus)
    assert slow.seconds == pytest.approx((hosts - 1) * local)


def test_numbers_of_the_agreement_are_the_engine_s() -> None:
    header = (ROOT / "tfdist" / "csrc" / "core" / "agree" / "header.h").read_text()
    assert f"kDirectHosts = {scale.DIRECT_HOSTS};" in header
    assert f"kRadix = {scale.RADIX};" in header


@pytest.mark.parametrize(
    ("plan", "overlap", "expected"),
    [
        # The first two buckets travel from 3 to 13 and to 15 s, so the third, which is there at 10 s, ends at 21 s.
        (ALONE, True, (21, 18, 11)),
        (ALONE, False, (28, 18, 18)),
        # A bucket waits for its last gradient: [0, 2] is there at 10 s, and [1] travels before it, at 3 s.
        ([[0, 2], [1]], True, (26, 18, 16)),
        ([[0, 1, 2]], True, (28, 18, 18)),
    ],
)
def test_steps_by_hand(plan: Any, overlap: bool, expected: tuple[float, ...]) -> None:
    assert times(STEP, plan, PAIR, 2, overlap=overlap) == pytest.approx(expected)
    # The update comes after everything.
    updated = (expected[0] + 2, *expected[1:])
    assert times(replace(STEP, update_s=2.0), plan, PAIR, 2, overlap=overlap) == pytest.approx(updated)


@pytest.mark.parametrize("overlap", [True, False])
def test_what_costs_nothing(overlap: bool) -> None:
    no_gradients = replace(STEP, layers=(Layer("c", 9.0, (0, 0)),))
    assert times(replace(STEP, deviation=0.5), ALONE, PAIR, 1, overlap=overlap) == pytest.approx((10, 0, 0))
    assert times(no_gradients, [[0, 1]], PAIR, 2, overlap=overlap) == pytest.approx((10, 0, 0), abs=1e-5)
    assert times(STEP, ALONE, FREE, 4096, overlap=overlap) == (10, 0, 0)


def test_overlap_hides_all_but_the_last_bucket() -> None:
    """At 100 MB/s the first two end at 4.2 s; the last one, of 60 MB, is there when all is computed."""
    faster = replace(PAIR, inter_bandwidth=100 * MB)
    assert times(STEP, ALONE, faster, 2)[2] == pytest.approx(0.6)
    hidden = replace(STEP, layers=(*STEP.layers[:2], Layer("a", 4.0, ())))
    assert times(hidden, [[0], [1]], faster, 2)[0] == 10
    # But not the messages before a bucket.
    distant = replace(faster, inter_latency_s=5.0)
    assert scale.agreement(distant, 2).seconds == pytest.approx(5)
    assert times(STEP, [[0], [1], []], distant, 2)[2] > 8


def test_the_slowest_of_two_ranks_decides() -> None:
    """The larger of two normal numbers is 1 / sqrt(pi) above the mean."""
    uneven, slower = replace(STEP, deviation=0.1), 1 + 0.1 / math.sqrt(math.pi)
    assert times(uneven, ALONE, FREE, 2)[0] == pytest.approx(10 * slower)
    # Bound by the network from the first bucket on.
    assert times(uneven, ALONE, PAIR, 2)[0] == pytest.approx(3 * slower + 18)


def test_compression_halves_the_wire_and_casts() -> None:
    """90 MB travel in 9 s; a cast reads and writes 270 MB, there and back, at 1,000 MB/s."""
    memory = replace(PAIR, memory_bandwidth=1000 * MB)
    assert times(STEP, ALONE, memory, 2, "fp16", overlap=False)[1] == pytest.approx(9 + 0.54)
    assert STEP.wire_sizes("bf16") == [50 * MB, 10 * MB, 30 * MB]
    assert replace(STEP, dtype="float64").wire_sizes("fp16") == [25 * MB, 5 * MB, 15 * MB]
    assert replace(STEP, dtype="bfloat16").wire_sizes("fp16") == STEP.gradients


seconds = st.floats(0.001, 1)
rates = st.floats(1e7, 1e12)
delays = st.floats(0, 1e-3)
sizes = st.lists(st.integers(0, 10**8).map(lambda count: 4 * count), max_size=3).map(tuple)
layers = st.lists(st.builds(Layer, st.just(""), seconds, sizes), min_size=1, max_size=6).map(tuple)
steps = st.builds(Step, st.just(""), st.just(1), st.just(9), seconds, layers, seconds, st.floats(0, 0.1))
locals_ = st.sampled_from([1, 2, 4, 8])
clusters = st.builds(Cluster, st.just(""), st.just(8), locals_, rates, rates, delays, delays, delays, rates)


@settings(max_examples=200, deadline=None)
@given(steps, clusters, st.integers(1, 100), st.integers(1, 100), st.floats(1, 100), st.sampled_from(SCHEDULES))
def test_what_holds_for_all(step: Step, cluster: Cluster, hosts: int, added: int, factor: float, schedule: str) -> None:
    plan = [[index] for index in range(len(step.gradients))]
    few, many = (count * cluster.gpus_per_host for count in (hosts, hosts + added))

    def made(cluster: Cluster, gpus: int, compression: str = "none", overlap: bool = True) -> dict[str, Any]:
        return predict(step, plan, cluster, gpus, compression, schedule, overlap)

    def at_most(less: float, more: float) -> bool:
        return less <= more * (1 + 1e-9)

    row, apart = made(cluster, few), made(cluster, few, overlap=False)
    wider = replace(cluster, intra_bandwidth=cluster.intra_bandwidth * factor)
    assert at_most(made(wider, few)["step_ms"], row["step_ms"])
    wider = replace(cluster, inter_bandwidth=cluster.inter_bandwidth * factor)
    assert at_most(made(wider, few)["step_ms"], row["step_ms"])
    if hosts > scale.DIRECT_HOSTS or hosts + added <= scale.DIRECT_HOSTS:  # 8 send more messages to agree than 9
        assert at_most(made(cluster, many)["efficiency"], row["efficiency"])
    assert at_most(row["efficiency"], 1)
    halved = made(replace(cluster, memory_bandwidth=INFINITE), few, "fp16")
    assert at_most(halved["communication_ms"], row["communication_ms"]) and at_most(halved["step_ms"], row["step_ms"])
    assert at_most(row["step_ms"], apart["step_ms"]) and at_most(row["computing_ms"], row["step_ms"])
    meetings = len(plan) * scale.agreement(cluster, few).seconds * 1e3
    assert -1e-6 <= apart["exposed_ms"] - apart["communication_ms"] <= meetings + 1e-6


def written(folder: Path, document: Any, file: str = "a.json", **fields: Any) -> Path:
    """With other fields, of which those that are None are left out."""
    document = {name: value for name, value in (document | fields).items() if value is not None}
    (folder / file).write_text(json.dumps(document))
    return folder / file


def test_cluster(tmp_path: Path) -> None:
    cluster = scale.read(Cluster, written(tmp_path, CLUSTER_FILE))
    assert (cluster.name, cluster.hosts, cluster.gpus_per_host, cluster.sources) == (
        "pairs",
        4,
        2,
        {"hosts": "counted"},
    )
    rates = (cluster.intra_bandwidth, cluster.inter_bandwidth, cluster.memory_bandwidth)
    assert rates == pytest.approx((1e9, 1e6, 100e9))
    latencies = (cluster.intra_latency_s, cluster.inter_latency_s, cluster.software_latency_s)
    assert latencies == pytest.approx((5e-6, 7.5e-6, 0))


def test_step_with_its_defaults(tmp_path: Path) -> None:
    step = scale.read(Step, written(tmp_path, STEP_FILE, published=None))
    dense, convolution = Layer("dense", 1.0, (4_000_000, 4000)), Layer("convolution", 2.0, (40_000,))
    assert step == Step("VGG16", 224, 64, 1.0, (dense, convolution), 0.0, 0.0, "float32", (), {})


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    layers = (Layer("b", 0.25, (4000, 40)), Layer("a", 0.0005, ()))
    published = (Published(512, 0.9, "a paper"),)
    step = Step("ResNet50", 96, 8, 0.125, layers, 0.03125, 0.0123456789, "bfloat16", published, {"times": "a clock"})
    scale.write(tmp_path / "step.json", step)
    assert scale.read(Step, tmp_path / "step.json") == step


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Cluster, {"hosts": None}, "a.json: missing field hosts"),
        (Cluster, {"hosts": 0}, "a.json: hosts is 0; expected a whole number, 1 or more"),
        (Cluster, {"hosts": 1.5}, "hosts is 1.5"),
        (Cluster, {"gpus_per_host": True}, "gpus_per_host is True"),
        (Cluster, {"name": 3}, "name is 3; expected a string"),
        (Cluster, {"intra_bandwidth_gb_s": 0}, "intra_bandwidth_gb_s is 0; expected a number greater than 0"),
        (Cluster, {"inter_bandwidth_gb_s": "3"}, "inter_bandwidth_gb_s is '3'; expected a number greater than 0"),
        (Cluster, {"inter_bandwidth_gb_s": INFINITE}, "inter_bandwidth_gb_s is inf"),
        (Cluster, {"memory_bandwidth_gb_s": float("nan")}, "memory_bandwidth_gb_s is nan"),
        (Cluster, {"intra_latency_us": -1}, "intra_latency_us is -1; expected a number, 0 or more"),
        (Cluster, {"inter_latency_us": False}, "inter_latency_us is False"),
        (Cluster, {"sources": {"hosts": 3}}, "sources is {'hosts': 3}; expected an object of strings"),
        (Cluster, {"gpu_per_host": 4}, "unknown fields: gpu_per_host"),
        (Step, {"layers": None}, "missing field layers"),
        (Step, {"layers": [3]}, "layers is [3]; expected a list of objects"),
        (Step, {"layers": [{"name": "a", "backward_ms": 1}]}, "a.json: layers[0]: missing field gradient_bytes"),
        (
            Step,
            {"layers": [{"name": "a", "backward_ms": 1, "gradient_bytes": [-4]}]},
            "layers[0]: gradient_bytes is [-4]; expected a list of whole numbers, 0 or more",
        ),
        (Step, {"published": [{"gpus": 2, "efficiency": 0, "source": ""}]}, "published[0]: efficiency is 0"),
        (Step, {"published": [{"gpus": 2, "efficiency": 1, "source": "", "y": 1}]}, "published[0]: unknown fields"),
        (Step, {"dtype": "float8"}, "dtype is 'float8'; expected one of float16"),
        (Step, {"relative_deviation": -0.1}, "relative_deviation is -0.1"),
        (Step, {"forward_ms": 0, "layers": []}, "a step of 0 ms has no throughput"),
    ],
)
def test_wrong_fields(tmp_path: Path, kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        scale.read(kind, written(tmp_path, STEP_FILE if kind is Step else CLUSTER_FILE, **fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[]", "contains a list; expected an object"), (None, "cannot be read: No such file")],
)
def test_files_that_hold_no_object(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        scale.read(Step, tmp_path / "a.json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run(words)` predicts for both files; the rows, and what the planner was asked."""
    asked: list[tuple[list[str], list[int], int]] = []

    def alone(dtypes: Sequence[str], sizes: Sequence[int], threshold: int) -> list[list[int]]:
        asked.append((list(dtypes), list(sizes), threshold))
        return [[index] for index in range(len(sizes))]

    def of_words(words: str, planner: Any = alone) -> tuple[Any, Any]:
        monkeypatch.setattr(library, "plan_buckets", planner)
        step, cluster = written(tmp_path, STEP_FILE, "step.json"), written(tmp_path, CLUSTER_FILE, "cluster.json")
        files = ["--step", str(step), "--cluster", str(cluster), "--json", str(tmp_path / "out.json")]
        options = option.parse(["scale", *files, *words.split()])
        assert isinstance(options, option.Scale)
        scale.run(options)
        return json.loads((tmp_path / "out.json").read_text()), asked

    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", str(3 << 20))
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)
    return of_words


def test_a_row_for_each_combination_in_order(run: Any) -> None:
    document, asked = run("--gpus 1,8 --compression none,fp16 --schedule hierarchical,flat")
    kinds = [(row["compression"], row["schedule"], row["gpus"]) for row in document["rows"]]
    assert kinds == [(c, s, gpus) for c in ("none", "fp16") for s in ("hierarchical", "flat") for gpus in (1, 8)]
    assert [row["published_efficiency"] for row in document["rows"]] == [None, 0.625] * 4
    # In backward order, by the bytes in memory.
    assert asked == [(["float32"] * 3, [4_000_000, 4000, 40_000], 3 << 20)]
    assert document["threshold_bytes"] == 3 << 20
    assert document["cluster"]["inter_bandwidth"] == pytest.approx(1e6)
    assert document["steps"][0]["layers"][1] == {"name": "convolution", "backward_s": 2.0, "gradients": [40_000]}


def test_without_numbers_of_gpus_those_of_the_cluster(run: Any) -> None:
    assert [row["gpus"] for row in run("")[0]["rows"]] == [1 << power for power in range(13)]


def test_tables_and_files(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The picture has a point of each network that was measured, and a line of each manner."""
    pytest.importorskip("matplotlib")
    document, _ = run(f"--gpus 1,8,16 --no-overlap --csv {tmp_path}/a.csv --plot {tmp_path}/a.png")
    text = capsys.readouterr().out
    assert "tfdist bench scale: pairs, buckets of 3MB" in text
    head, *lines = text.split("VGG16, batch 64, hierarchical, without overlap\n")[1].splitlines()[:4]
    assert head.split()[-2:] == ["efficiency", "published"]
    assert lines[0].split() == ["1", "1", "3", "0", "4000.0", "4000.0", "0.0", "0.0", "16", "100.0", "%"]
    assert lines[1].split()[-4:] == ["39.7", "%", "62.5", "%"]
    assert lines[2].split()[:2] == ["16", "*"] and "* : more than the 4 hosts" in text
    with (tmp_path / "a.csv").open(newline="") as file:
        assert [float(row["efficiency"]) for row in csv.DictReader(file)] == [
            row["efficiency"] for row in document["rows"]
        ]
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5000


def test_the_plan_is_that_of_the_library(run: Any) -> None:
    """4 MB travel alone; 4 kB and 40 kB together, or not."""
    planner = library.plan_buckets
    found = [run(f"--gpus 8 --threshold {size}", planner)[0]["rows"][0]["buckets"] for size in ("1MB", "4KB")]
    assert found == [2, 3]


@pytest.fixture(scope="module")
def paper() -> dict[str, Step]:
    files = (ROOT / "benchmarks" / "scale" / f"{name}.json" for name in ("resnet101", "inception_v3", "vgg16"))
    return {step.model: step for step in (scale.read(Step, file) for file in files)}


@pytest.fixture(scope="module")
def servers() -> Cluster:
    return scale.read(Cluster, ROOT / "benchmarks" / "scale" / "horovod_paper.json")


# Parameters that are trained: tables of keras.io/api/applications, less the moving statistics of batch normalisation.
@pytest.mark.parametrize(
    ("model", "parameters", "images_per_second"),
    [("ResNet101", 44_601_832, 119.4), ("InceptionV3", 23_817_352, 134.4), ("VGG16", 138_357_544, 130.9)],
)
def test_steps_of_the_paper(paper: dict[str, Step], model: str, parameters: int, images_per_second: float) -> None:
    step = paper[model]
    assert sum(step.gradients) == 4 * parameters
    assert step.batch_size / step.seconds == pytest.approx(images_per_second, rel=1e-6)
    assert {item.gpus for item in step.published} == {16, 128, 512}
    assert all(item.source for item in step.published)


def test_cluster_of_the_paper_names_its_sources(servers: Cluster) -> None:
    assert (servers.hosts, servers.gpus_per_host) == (128, 4)
    assert servers.inter_bandwidth == pytest.approx(25e9 / 8 * 1024 / 1106, rel=2e-3)
    assert {field.partition("_")[0] for field in servers.sources} == {"hosts", "intra", "inter", "software", "memory"}


def efficiency(step: Step, servers: Cluster, gpus: int, mebibytes: int = 8, **manner: Any) -> float:
    plan = library.plan_buckets([step.dtype] * len(step.gradients), step.gradients, mebibytes << 20)
    manner = {"compression": "none", "schedule": "hierarchical", "overlap": True} | manner
    return float(predict(step, plan, servers, gpus, **manner)["efficiency"])


def test_predictions_of_the_page(paper: dict[str, Step], servers: Cluster) -> None:
    """The table in docs/scaling.md is what is published, and what is predicted from the recordings."""
    page = (ROOT / "docs" / "scaling.md").read_text()
    rows = re.findall(r"^\| (\w+), (\d+)(?: \*)? \|(.*)\|$", page, re.MULTILINE)
    assert len(rows) == 12
    for model, number, cells in rows:
        step, gpus = paper[model], int(number)
        published = {item.gpus: item.efficiency for item in step.published}.get(gpus)
        flat = efficiency(step, servers, gpus, 64, schedule="flat")
        others = ({}, {"compression": "fp16"}, {"overlap": False})
        found = [published, flat, *(efficiency(step, servers, gpus, **manner) for manner in others)]
        expected = [cell.strip() for cell in cells.split("|")]
        assert ["" if each is None else f"{100 * each:.0f} %" for each in found] == expected, (model, gpus)
        if published is not None:
            # A step that is bound by the network gets its upper limit.
            assert flat > published if model == "VGG16" else abs(flat - published) < 0.03


def test_deviation_of_the_paper_is_chosen_by_one_figure(paper: dict[str, Step], servers: Cluster) -> None:
    assert len({step.deviation for step in paper.values()}) == 1
    step = paper["InceptionV3"]
    published = {item.gpus: item.efficiency for item in step.published}[16]
    assert efficiency(step, servers, 16, 64, schedule="flat") == pytest.approx(published, abs=1e-4)
