"""The benchmark of a dispatcher's restart at a small size: all is there again. Its figures are not judged here."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = pytest.mark.slice("data-service")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "data_service_restart.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("data_service_restart", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules[spec.name]


def test_a_dispatcher_with_everything_comes_back(tmp_path):
    figures = tmp_path / "figures.json"
    sizes = ["--workers", "30", "--datasets", "40", "--jobs", "2", "--splits", "25"]
    command = [sys.executable, str(SCRIPT), *sizes, "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(figures.read_text())
    assert result["size"] == {"workers": 30, "datasets": 40, "jobs": 2, "splits": 25}
    assert result["restart_s"] == pytest.approx(result["import_s"] + result["start_s"], abs=0.1)
    assert result["heartbeats_s"] > 0 and result["start_s"] > 0
    # A worker, a dataset, a task and a part of the data take a record each.
    assert result["journal_bytes"] > 16 * (30 + 40 + 2 * 30 + 2 * 25)
    assert all(name in done.stdout for name in result)


def test_workers_have_own_loopback_addresses(script):
    made = script.addresses(70_000)
    assert len(set(made)) == 70_000
    numbers = [[int(part) for part in address.removesuffix(":9").split(".")] for address in made]
    assert all(first == 127 and 0 <= last <= 255 for first, *rest in numbers for last in rest)


def test_datasets_are_real_and_different(script):
    graphs = list(script.graphs(4))
    assert len(set(graphs)) == 4
    for size, graph in zip((1, 2, 3), graphs[:3], strict=True):
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))
        assert [int(number) for number in dataset] == list(range(size))
