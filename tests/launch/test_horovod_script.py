"""The scripts in benchmarks/horovod import Horovod; under `tfdistrun --as-horovod` they say what they should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "horovod"


def run(option: str, ranks: int, script: str, *words: str) -> list[dict[str, Any]]:
    launcher = str(Path(sys.executable).parent / "tfdistrun")
    command = [launcher, option, "--as-horovod", "-np", str(ranks), sys.executable, str(SCRIPTS / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in re.findall(r"^\[0\] (\{.*)$", done.stdout, re.MULTILINE)]


def test_allreduce(starter: str) -> None:
    lines = run("--mpi" if starter == "mpi" else "--no-mpi", 2, "allreduce.py", "4096", "7", "none,fp16", "0.01")
    assert [(line["bytes"], line["tensors"], line["compression"]) for line in lines] == [
        (4096, 7, "none"),
        (4096, 7, "fp16"),
    ]
    assert all(0 < line["min_us"] <= line["median_us"] and line["horovod"] == "0.28.1" for line in lines)


def test_train() -> None:
    (line,) = run("--no-mpi", 2, "train.py", "digits", "8", "2", "fp16", "3")
    names = ("model", "image_size", "batch_size", "compression", "ranks")
    assert [line[name] for name in names] == ["digits", 8, 2, "fp16", 2]
    assert 0 < line["min_ms"] <= line["median_ms"]


NOTEBOOK = """
import tfdist
tfdist.as_horovod()
import horovod
import horovod.tensorflow as hvd

def total(x):
    hvd.init()
    return hvd.rank(), float(hvd.allreduce(float(x + hvd.rank()), op=hvd.Sum))

if __name__ == "__main__":
    print(horovod.run(total, args=(10,), num_proc=2))
"""


def test_function_of_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    command = [sys.executable, "notebook.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["[(0, 21.0), (1, 21.0)]"], done.stderr
