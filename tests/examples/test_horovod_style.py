"""Scripts as Horovod's users write them run unchanged, or with other import lines, and do what they say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from tfdist.tensorflow.data.compute_service import TfDataServiceConfig

pytestmark = [pytest.mark.usefixtures("all_packages"), pytest.mark.slice("examples")]

FOLDER = Path(__file__).resolve().parent / "horovod_style"
SCRIPTS = sorted(FOLDER.glob("*.py"))
LINES_AT_MOST = 100
SECONDS = 300
STALE = TfDataServiceConfig(1, 2, "compute", {"lo": [("127.0.0.1", 1)]}, bytes(32), 5)


def run(
    name: str, size: int, folder: Path, *options: str, launch: Sequence[str] = ("--as-horovod",)
) -> list[dict[str, Any]]:
    """What each rank says at its end, by rank."""
    launcher = Path(sys.executable).parent / "tfdistrun"
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    command = [str(launcher), *launch, "-np", str(size), sys.executable, str(path), *options]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "AutoGraph" not in done.stdout + done.stderr, "tf.function could not read a function of ours"
    found = dict(re.findall(r"^\[(\d+)\] result (.+)$", done.stdout, flags=re.MULTILINE))
    assert sorted(found) == [str(rank) for rank in range(size)], done.stdout[-3000:]
    return [json.loads(found[str(rank)]) for rank in range(size)]


def with_other_import_lines(name: str, folder: Path) -> str:
    """The script as the migration guide has it; its path."""
    text = (FOLDER / f"{name}.py").read_text()
    for theirs, ours in (("horovod.tensorflow.keras", "tfdist.keras"), ("horovod.tensorflow", "tfdist.tensorflow")):
        text = re.sub(rf"^(import|from) {re.escape(theirs)}\b", rf"\1 {ours}", text, flags=re.MULTILINE)
    assert "horovod" not in text.replace("horovod_style", "")
    (folder / f"{name}.py").write_text(text)
    return str(folder / f"{name}.py")


def same(results: list[dict[str, Any]], name: str) -> Any:
    """The value that all ranks agree on."""
    values = [result[name] for result in results]
    assert all(value == values[0] for value in values), values
    return values[0]


def accuracy_of(path: Path, shape: tuple[int, ...]) -> float:
    """On all digits, of a model that only Keras has loaded."""
    images, labels = load_digits(return_X_y=True)
    answers = keras.models.load_model(path).predict((images / 16).reshape(-1, *shape).astype("float32"), verbose=0)
    return float(np.mean(np.argmax(answers, axis=1) == labels))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_is_a_script_for_horovod(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^import horovod\.(keras|tensorflow|tensorflow\.keras) as hvd$", text, re.MULTILINE)
    assert "tfdist" not in text
    assert text.count("\n") <= LINES_AT_MOST


def test_there_are_nine() -> None:
    assert len(SCRIPTS) == 9


@pytest.mark.parametrize("unchanged", [True, False])
def test_keras_callbacks(tmp_path: Path, unchanged: bool) -> None:
    name, launch = ("keras_callbacks", ("--as-horovod",)) if unchanged else ("", ())
    folder = tmp_path / "run"
    folder.mkdir()
    results = run(name or with_other_import_lines("keras_callbacks", tmp_path), 2, folder, launch=launch)
    same(results, "weights")
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        same(results, name)
    assert results[0]["val_accuracy"] >= 0.93
    # From 0.1 / 2, in a straight line over three epochs, to 0.1; a tenth of it in the last two.
    rates = same(results, "rates")
    assert same(results, "first_rate") == pytest.approx(0.05)
    assert rates[:2] == [pytest.approx(0.05 * (1 + epochs / 3), rel=0.02) for epochs in (1, 2)]
    assert rates[3:] == [pytest.approx(0.1)] * 7 + [pytest.approx(0.01)] * 2
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"checkpoint-{epoch:02d}.keras".replace("-0", "-") for epoch in range(1, 13)
    )
    assert accuracy_of(folder / "checkpoint-12.keras", (8, 8, 1)) >= 0.95


def test_script_for_keras_2(tmp_path: Path) -> None:
    results = run("keras2", 2, tmp_path)
    same(results, "weights")
    # Validation goes over the test data twice.
    assert same(results, "score") == pytest.approx(same(results, "val_accuracy"), abs=1e-6)
    assert same(results, "val_accuracy") >= 0.8
    assert same(results, "rate") == pytest.approx(0.1)
    assert same(results, "variables") == 2 + 6  # iterations and rate, and the momenta
    assert accuracy_of(tmp_path / "checkpoint-4.h5", (8, 8, 1)) >= 0.8


def test_custom_loop(tmp_path: Path) -> None:
    results = run("custom_loop", 2, tmp_path)
    same(results, "weights")
    losses = [result["loss"] for result in results]
    assert losses[0] != losses[1], "the ranks have the same data"
    assert same(results, "mean_loss") == pytest.approx(np.mean(losses), rel=1e-5)
    assert accuracy_of(tmp_path / "digits.keras", (64,)) >= 0.95


@pytest.mark.parametrize("options", [(), ("--fp16-allreduce",)], ids=["fp32", "fp16"])
def test_synthetic_benchmark(tmp_path: Path, options: tuple[str, ...]) -> None:
    results = run("synthetic_benchmark", 2, tmp_path, *options)
    assert same(results, "total") == pytest.approx(sum(result["mean"] for result in results), rel=1e-9)
    for result in results:
        assert len(result["rates"]) == 4
        assert min(result["rates"]) > 0
        assert result["mean"] == pytest.approx(np.mean(result["rates"]))
    assert same(results, "steps") == 2 + 4 * 3
    same(results, "sum")


@pytest.mark.parametrize("size", [2, 3])
def test_process_sets(tmp_path: Path, size: int) -> None:
    results = run("process_sets", size, tmp_path)
    groups = [list(range(rank % 2, size, 2)) for rank in range(size)]
    assert same(results, "groups") == groups
    assert same(results, "whole_sum") == sum(10**rank for rank in range(size))
    assert same(results, "left") == size
    lines = same(results, "lines")
    for rank, result in enumerate(results):
        assert result["group_sum"] == sum(10**place for place in range(len(groups[rank])))
        assert result["loss"] < 1e-6
        assert lines[rank] == pytest.approx(result["truth"], abs=1e-3)
        assert lines[rank] == lines[groups[rank][0]], "the ranks of a group differ"


def test_local_embedding(tmp_path: Path) -> None:
    """On three ranks, with a third of the table each, what one rank does that has all of it."""
    (reference,) = run("local_embedding", 1, tmp_path)
    results = run("local_embedding", 3, tmp_path)
    assert [result["part"] for result in results] == [[10, 4]] * 3
    assert all(sum(result["asked"]) == 20 for result in results)
    assert len({tuple(result["asked"]) for result in results}) == 3
    assert reference["loss"] < 0.01
    assert same(results, "loss") == pytest.approx(reference["loss"], rel=1e-2)
    same(results, "head")
    assert np.allclose(same(results, "table"), reference["table"], rtol=1e-3, atol=1e-4)
    assert np.allclose(results[0]["head"], reference["head"], rtol=1e-3, atol=1e-4)


def test_mpi4py_split(tmp_path: Path) -> None:
    results = run("mpi4py_split", 4, tmp_path)
    assert [result["world"] for result in results] == [[rank, 4] for rank in range(4)]
    assert [result["group"] for result in results] == [[rank % 2, rank // 2, 2] for rank in range(4)]
    narrow, wide = results[0::2], results[1::2]
    for group in (narrow, wide):
        for name in ("weights", "accuracy", "losses"):
            same(group, name)
    assert narrow[0]["weights"] != wide[0]["weights"]
    assert wide[0]["accuracy"] >= 0.9
    assert wide[0]["accuracy"] > narrow[0]["accuracy"] + 0.05
    assert same(results, "best") == [wide[0]["accuracy"], 48]


@pytest.fixture
def compute_job(tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a compute job of two workers where the file of an earlier job stands, and waits for its own."""
    path, log = tmp_path / "compute.json", tmp_path / "compute.log"
    made: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        STALE.write(str(path))
        launcher = Path(sys.executable).parent / "tfdistrun"
        program = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker", str(path), *options]
        with log.open("w") as file:
            made.append(
                subprocess.Popen([str(launcher), "--as-horovod", "-np", "2", *program], stdout=file, stderr=file)
            )
        wait_until(lambda: TfDataServiceConfig.read(str(path)) != STALE, 60, "the file of the compute job")
        return made[-1]

    yield start
    for process in made:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("compute", "training"),
    [((), ("--reuse-dataset", "--round-robin")), (("--dispatcher-side", "training"), ("--reuse-dataset",))],
    ids=["compute side", "training side"],
)
def test_data_service(
    tmp_path: Path, compute_job: Callable[..., subprocess.Popen[bytes]], compute: tuple[str, ...], training: tuple
) -> None:
    """A compute job of two workers prepares the data of two ranks, and ends when they say so."""
    job = compute_job(*compute)
    results = run("data_service", 2, tmp_path, "compute.json", *training)
    same(results, "weights")
    assert same(results, "accuracy")[-1] >= 0.9
    assert job.wait(30) == 0, (tmp_path / "compute.log").read_text()
    assert not (tmp_path / "compute.json").exists()


@pytest.mark.parametrize("size", [1, 2])
def test_session(size: int, tmp_path: Path) -> None:
    results = run("session", size, tmp_path)
    assert same(results, "steps") == 200
    assert np.mean(same(results, "accuracy")) >= 0.9
    same(results, "weights")
    assert (tmp_path / "checkpoints" / "checkpoint").exists()
