"""benchmarks/scale/validate.py without running anything: this machine as a cluster, shared cores, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.bench.scale import scale_cluster, scale_collective, scale_step
from tfdist.command.bench.scale.scale_step import Layer, Step

SCALE = Path(__file__).resolve().parents[4] / "benchmarks" / "scale"
STEP = Step("VGG16", 64, 8, 1.0, (Layer("b", 2.0, (40,)), Layer("a", 3.0)), update_s=0.5, deviation=0.25)


@pytest.fixture
def validate(script: Any) -> Any:
    return script("scale/validate")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_cluster_takes_as_long_as_was_measured(validate: Any, tmp_path: Path, ranks: int) -> None:
    rows = [{"bytes": 64 << 20, "median_us": 30_000.0}, {"bytes": 4 << 10, "median_us": 60.0}]
    (tmp_path / "c.json").write_text(json.dumps(validate.cluster(rows, ranks)))
    cluster = scale_cluster.read(tmp_path / "c.json")
    large, small = (scale_collective.allreduce_s(cluster, cluster.place(ranks), row["bytes"]) for row in rows)
    # The latency is that of the small one, whose bytes take a little time besides.
    assert large - small == pytest.approx(29_940e-6)
    assert small == pytest.approx(60e-6, rel=0.05)


def test_noise_that_hides_the_bandwidth_is_an_error(validate: Any) -> None:
    rows = [{"bytes": 4096, "median_us": 60.0}, {"bytes": 8192, "median_us": 50.0}]
    with pytest.raises(SystemExit, match="the machine is not quiet"):
        validate.cluster(rows, 2)


def test_ranks_share_cores_only_where_there_are_too_few(validate: Any) -> None:
    assert validate.shared(STEP, 2, 2) == validate.shared(STEP, 2, 8) == STEP
    slower = validate.shared(STEP, 4, 2)
    assert (slower.forward_s, slower.update_s, slower.seconds) == (2.0, 1.0, 2 * STEP.seconds)
    assert [layer.backward_s for layer in slower.layers] == [4.0, 6.0]
    assert slower.gradients == STEP.gradients


def test_row(validate: Any) -> None:
    measured = {"rows": [{"ranks": 2, "median_ms": 6500.0}]}
    cells = validate.row(STEP, STEP, {"step_ms": 8125.0}, measured)
    assert cells == ["VGG16, 64 px, batch 8", "2", "6500.0", "8125.0", "6500.0", "1.25"]
    assert len(cells) == len(validate.HEAD)


def test_ranks_are_parsed(validate: Any) -> None:
    assert validate.parse([]).ranks == [2, 4]
    with pytest.raises(SystemExit):
        validate.parse(["--ranks", "1,2"])


# Parameters that are trained: tables of keras.io/api/applications, less the moving statistics of batch normalisation.
@pytest.mark.parametrize(
    ("name", "model", "parameters", "images_per_second"),
    [
        ("resnet101", "ResNet101", 44_601_832, 119.4),
        ("inception_v3", "InceptionV3", 23_817_352, 134.4),
        ("vgg16", "VGG16", 138_357_544, 130.9),
    ],
)
def test_steps_of_the_paper(name: str, model: str, parameters: int, images_per_second: float) -> None:
    step = scale_step.read(SCALE / f"{name}.json")
    assert (step.model, step.batch_size, step.dtype) == (model, 64, "float32")
    assert sum(step.gradients) == 4 * parameters
    assert step.batch_size / step.seconds == pytest.approx(images_per_second, rel=1e-6)
    assert {item.gpus for item in step.published} == {16, 128, 512}
    assert all(item.source for item in step.published)


def test_cluster_of_the_paper_names_its_sources() -> None:
    cluster = scale_cluster.read(SCALE / "horovod_paper.json")
    assert (cluster.hosts, cluster.gpus_per_host) == (128, 4)
    assert cluster.inter_bandwidth == pytest.approx(25e9 / 8 * 1024 / 1106, rel=2e-3)
    described = json.loads((SCALE / "horovod_paper.json").read_text())
    assert set(described) - set(described["sources"]) == {"name", "gpus_per_host", "sources"}
