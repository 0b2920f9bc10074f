"""What TensorFlow knows of the ops on GPUs, and where they run. Needs no GPU: running them is for tests/gpu."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from tfdist.native import adapter
from tfdist.ops.graph import call, order

# Arguments that a GPU's kernel takes in the host's memory.
HOST_ARGUMENTS = {
    "TfdistGroupedAllreduce": {"prescale", "postscale", "weight", "order"},
    "TfdistStartAllreduce": {"prescale", "postscale", "weight", "order", "call"},
    "TfdistAwait": {"call", "order"},
    "TfdistGroupedReducescatter": {"prescale", "postscale", "order"},
    "TfdistGroupedAllgather": {"rows", "order"},
    "TfdistGroupedBroadcast": {"order"},
    "TfdistBroadcastVariables": {"variables", "order"},
    "TfdistAlltoall": {"splits", "received_splits", "order"},
    "TfdistBarrier": {"order"},
    "TfdistJoin": {"order", "last"},
    "TfdistTopology": {"value"},
}


def test_every_op_is_in_the_table(collective_ops):
    assert collective_ops == set(HOST_ARGUMENTS)


@pytest.mark.parametrize("op", HOST_ARGUMENTS)
def test_every_op_has_a_kernel_for_gpus(op):
    adapter.ops()
    by_device = {kernel.device_type: kernel for kernel in kernels.get_registered_kernels_for_op(op).kernel}
    assert {"CPU", "GPU"} <= set(by_device)
    assert set(by_device["GPU"].host_memory_arg) == HOST_ARGUMENTS[op]
    assert not by_device["CPU"].host_memory_arg


@pytest.mark.parametrize(
    ("gpus", "operations", "device"), [(1, "nccl", "GPU:0"), (1, "mpi", "CPU:0"), (0, "nccl", "CPU:0")]
)
def test_collectives_run_on_the_visible_gpu_by_default(monkeypatch, gpus, operations, device):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind] * gpus)
    monkeypatch.setenv("TFDIST_GPU_OPERATIONS", operations)
    assert order.collective_device() == device
    assert call.overlaps() == (device == "GPU:0")
