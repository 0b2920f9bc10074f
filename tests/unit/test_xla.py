"""Where XLA can compile collectives, and that it can whatever the process has compiled before."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tfdist import _native, xla

LATE = """
import tensorflow as tf

@tf.function(jit_compile=True)
def earlier(x):
    return x * 2

assert float(earlier(tf.constant(1.0))) == 2

import tfdist

tfdist.init()

@tf.function(jit_compile=True)
def step(x):
    return tfdist.allreduce(x, op=tfdist.Sum, name="x")

try:
    print("result", float(step(tf.constant(3.0))))
except tf.errors.OpError as error:
    print("refused", error.message)
"""


def test_a_process_that_compiled_something_before_it_loads_tfdist(tmp_path):
    """TensorFlow makes its kernels for XLA once, at the first compilation."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", LATE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if _native.build_info()["xla"]:
        assert done.stdout == "result 3.0\n"
    else:
        assert "TfdistGroupedAllreduce cannot be compiled by XLA: that takes TensorFlow" in done.stdout
        assert f"tfdist was built for TensorFlow {tf.__version__}" in done.stdout


def test_an_old_tensorflow_is_an_obstacle(monkeypatch):
    monkeypatch.setattr(_native, "build_info", lambda: {"tensorflow": "2.16.2", "xla": ""})
    assert "TensorFlow 2.16.2" in str(xla.obstacle())


@pytest.mark.parametrize(("gpus", "found"), [([], False), (["/physical_device:GPU:0"], True)])
def test_a_gpu_is_an_obstacle(monkeypatch, gpus, found):
    monkeypatch.setattr(_native, "build_info", lambda: {"tensorflow": "2.21.0", "xla": "cpu"})
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus if kind == "GPU" else [])
    assert (xla.obstacle() is not None) == found
