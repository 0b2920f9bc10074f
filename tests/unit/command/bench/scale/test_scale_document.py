"""Fields of JSON files, and what is said about those that are wrong, with clusters and steps as the files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.bench.scale import scale_cluster, scale_step
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_document import Document
from tfdist.command.bench.scale.scale_step import Layer, Published, Step
from tfdist.errors import ConfigError

CLUSTER: dict[str, Any] = {
    "name": "two racks",
    "hosts": 16,
    "gpus_per_host": 4,
    "intra_bandwidth_gb_s": 12,
    "inter_bandwidth_gb_s": 3.125,
    "intra_latency_us": 5,
    "inter_latency_us": 7.5,
    "software_latency_us": 0,
    "memory_bandwidth_gb_s": 700,
    "sources": {"hosts": "counted"},
}
STEP: dict[str, Any] = {
    "model": "VGG16",
    "image_size": 224,
    "batch_size": 64,
    "forward_ms": 160.5,
    "layers": [{"name": "dense", "backward_ms": 12, "gradient_bytes": [400, 0]}],
}


def changed(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """With other fields, of which those that are None are left out."""
    return {name: value for name, value in (document | fields).items() if value is not None}


def written(folder: Path, document: Any) -> Path:
    path = folder / "a.json"
    path.write_text(json.dumps(document))
    return path


def test_cluster(tmp_path: Path) -> None:
    assert scale_cluster.read(written(tmp_path, CLUSTER)) == Cluster(
        name="two racks",
        hosts=16,
        gpus_per_host=4,
        intra_bandwidth=12e9,
        inter_bandwidth=3.125e9,
        intra_latency_s=5e-6,
        inter_latency_s=7.5e-6,
        software_latency_s=0,
        memory_bandwidth=700e9,
        sources={"hosts": "counted"},
    )


def test_step_with_its_defaults(tmp_path: Path) -> None:
    step = scale_step.read(written(tmp_path, STEP))
    assert step == Step("VGG16", 224, 64, 0.1605, (Layer("dense", 0.012, (400, 0)),))
    assert (step.update_s, step.deviation, step.dtype, step.published, step.sources) == (0, 0, "float32", (), {})


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    step = Step(
        *("ResNet50", 96, 8, 0.125),
        layers=(Layer("b", 0.25, (4000, 40)), Layer("a", 0.0005)),
        update_s=0.03125,
        deviation=0.0123456789,
        dtype="bfloat16",
        published=(Published(512, 0.9, "a paper"),),
        sources={"times": "a clock"},
    )
    scale_step.write(tmp_path / "step.json", step)
    assert scale_step.read(tmp_path / "step.json") == step


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hosts": None}, "a.json lacks the field hosts"),
        ({"hosts": 0}, "a.json: hosts is 0; expected a whole number of 1 or more"),
        ({"hosts": 1.5}, "hosts is 1.5"),
        ({"gpus_per_host": True}, "gpus_per_host is True"),
        ({"name": 3}, "name is 3; expected a text"),
        ({"intra_bandwidth_gb_s": 0}, "intra_bandwidth_gb_s is 0; expected a number of more than 0"),
        ({"inter_bandwidth_gb_s": "3"}, "inter_bandwidth_gb_s is '3'; expected a number of more than 0"),
        ({"inter_bandwidth_gb_s": float("inf")}, "inter_bandwidth_gb_s is inf"),
        ({"memory_bandwidth_gb_s": float("nan")}, "memory_bandwidth_gb_s is nan"),
        ({"intra_latency_us": -1}, "intra_latency_us is -1; expected a number of 0 or more"),
        ({"inter_latency_us": False}, "inter_latency_us is False"),
        ({"sources": {"hosts": 3}}, "sources is {'hosts': 3}; expected an object of texts"),
        ({"gpu_per_host": 4}, "fields that are not known: gpu_per_host"),
    ],
)
def test_wrong_clusters(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        scale_cluster.read(written(tmp_path, changed(CLUSTER, **fields)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": None}, "lacks the field layers"),
        ({"layers": [3]}, "layers is [3]; expected a list of objects"),
        ({"layers": [{"name": "a", "backward_ms": 1}]}, "a.json: layers[0] lacks the field gradient_bytes"),
        (
            {"layers": [{"name": "a", "backward_ms": 1, "gradient_bytes": [-4]}]},
            "layers[0]: gradient_bytes is [-4]; expected a list of whole numbers of 0 or more",
        ),
        ({"layers": [{"name": "a", "backward_ms": 1, "gradient_bytes": 4}]}, "gradient_bytes is 4"),
        ({"layers": [{"name": "a", "backward_ms": 1, "gradient_bytes": [], "x": 1}]}, "layers[0] has fields"),
        ({"published": [{"gpus": 2, "efficiency": 0, "source": ""}]}, "published[0]: efficiency is 0"),
        ({"published": [{"gpus": 2, "efficiency": 1, "source": "", "y": 1}]}, "published[0] has fields"),
        ({"dtype": "float8"}, "dtype is 'float8'; expected one of float16"),
        ({"relative_deviation": -0.1}, "relative_deviation is -0.1"),
        ({"forward_ms": 0, "layers": []}, "a step of 0 ms has no throughput"),
        ({"optimizer_ms": 3}, "fields that are not known: optimizer_ms"),
    ],
)
def test_wrong_steps(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        scale_step.read(written(tmp_path, changed(STEP, **fields)))


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "holds a list; expected an object")])
def test_files_that_hold_no_object(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Document.read(tmp_path / "a.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Document.read(tmp_path / "a.json")


def test_time_is_shared_out_by_operations() -> None:
    assert scale_step.share(6.0, [1, 0, 2]) == [2.0, 0.0, 4.0]
