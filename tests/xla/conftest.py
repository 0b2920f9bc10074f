"""Builds, once a session, the library that shows what functions become for XLA on a GPU, and lets cases.py use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.native import adapter

HERE = Path(__file__).parent
# The headers of XLA are many, and a core may be busy.
SECONDS_TO_BUILD = 900
SECONDS_TO_RUN = 300


def build(folder: Path) -> Path:
    """As CMakeLists.txt builds tfdist's own XLA kernels, without optimisation."""
    root = Path(tf.sysconfig.get_lib())
    library = folder / "libhlo_text.so"
    externals = [
        path for pattern in ("*", "*/src", "*/include") for path in (root / "include" / "external").glob(pattern)
    ]
    command = [
        *(os.environ.get("CXX", "c++"), "-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden"),
        *("-DNDEBUG", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"),
        *(word for path in (root / "include", *externals) if path.is_dir() for word in ("-isystem", str(path))),
        *(str(HERE / "hlo_text.cc"), "-o", str(library), f"-L{root}"),
        *("-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-Wl,--no-undefined"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_BUILD, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By the name of a case its `text` in XLA's language, or the `error`; by that of a platform its handlers.

    In a process of its own, because TensorFlow makes the list of its kernels for XLA once.
    """
    if not adapter.record()["xla"]:
        pytest.skip("this TensorFlow is too old for collectives in XLA")
    folder = tmp_path_factory.mktemp("hlo")
    given = os.environ.get("TFDIST_HLO_TEXT_LIBRARY")  # built before
    program = Path(given) if given else build(folder)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(HERE / "cases.py"), str(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_RUN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
