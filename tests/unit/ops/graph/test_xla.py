"""Where XLA can compile collectives, and that it can whatever the process has compiled before."""

import os
import subprocess
import sys

import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from tfdist.native import adapter
from tfdist.ops.graph import xla

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


def test_process_that_compiled_before_loading_tfdist(tmp_path):
    """TensorFlow makes its kernels for XLA once, at the first compilation."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", LATE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if adapter.record()["xla"]:
        assert done.stdout == "result 3.0\n"
    else:
        assert "TfdistGroupedAllreduce cannot be compiled by XLA: that needs TensorFlow" in done.stdout
        assert f"tfdist was built for TensorFlow {tf.__version__}" in done.stdout


def test_an_old_tensorflow_is_an_obstacle(monkeypatch):
    monkeypatch.setattr(adapter, "record", lambda: {"tensorflow": "2.16.2", "xla": ""})
    assert "TensorFlow 2.16.2" in str(xla.obstacle())


def test_a_gpu_is_no_obstacle(monkeypatch):
    monkeypatch.setattr(adapter, "record", lambda: {"tensorflow": "2.21.0", "xla": "cpu,cuda"})
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["/physical_device:GPU:0"])
    assert xla.obstacle() is None


def test_collectives_beside_the_gpu_are_an_obstacle(monkeypatch):
    monkeypatch.setattr(adapter, "record", lambda: {"tensorflow": "2.21.0", "xla": "cpu,cuda"})
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["/physical_device:GPU:0"])
    monkeypatch.setenv("TFDIST_GPU_OPERATIONS", "mpi")
    assert "TFDIST_GPU_OPERATIONS=mpi" in str(xla.obstacle())


def test_every_op_has_a_kernel_for_each_platform(collective_ops):
    """Where XLA has no form of it, one that says so."""
    for op in collective_ops:
        kernels = get_registered_kernels_for_op(op).kernel
        assert {"XLA_CPU_JIT", "XLA_GPU_JIT"} <= {kernel.device_type for kernel in kernels}, op


def test_the_build_knows_its_platforms():
    newest = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 21)
    assert adapter.record()["xla"] == ("cpu,cuda" if newest else "")
