"""The scripts in benchmarks/horovod, run against tfdist's own facades under Horovod's names.

Horovod itself needs an older TensorFlow. Its names and their meaning are the same here, so that what the scripts print
can be compared with what compare.py reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "horovod"


@pytest.fixture
def facade(tmp_path: Path) -> dict[str, str]:
    """Variables under which `import horovod` is tfdist."""
    packages = {
        "horovod": "__version__ = '0.0'\n",
        "horovod/tensorflow": "from tfdist.tensorflow import *\n",
        "horovod/tensorflow/keras": "from tfdist.keras import *\nfrom tfdist.keras import callbacks\n",
    }
    for name, text in packages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def run(facade: dict[str, str], script: str, *words: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPTS / script), *words]
    done = subprocess.run(command, env=facade, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_allreduce(facade: dict[str, str]) -> None:
    lines = run(facade, "allreduce.py", "4096", "7", "none,fp16", "0.01")
    assert [(line["bytes"], line["tensors"], line["compression"]) for line in lines] == [
        (4096, 7, "none"),
        (4096, 7, "fp16"),
    ]
    assert all(0 < line["min_us"] <= line["median_us"] and line["horovod"] == "0.0" for line in lines)


def test_train(facade: dict[str, str]) -> None:
    (line,) = run(facade, "train.py", "digits", "8", "2", "fp16", "3")
    names = ("model", "image_size", "batch_size", "compression", "ranks")
    assert [line[name] for name in names] == ["digits", 8, 2, "fp16", 1]
    assert 0 < line["min_ms"] <= line["median_ms"]
