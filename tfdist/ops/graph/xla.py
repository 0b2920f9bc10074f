"""Checks whether XLA can compile functions with collectives here. Compiles nothing."""

from __future__ import annotations

from tfdist.native import adapter, hardware
from tfdist.ops.graph import order


def obstacle() -> str | None:
    """Why `jit_compile=True` does not work with collectives in this process; None if it does.

    Example:

    ```python
    from tfdist.ops.graph import xla

    model.compile(optimizer, loss="mse", jit_compile=xla.obstacle() is None)
    ```
    """
    built = adapter.record()
    if not built["xla"]:
        newest = built["tensorflow"].split()[-1]
        return f"collectives cannot be compiled by XLA with TensorFlow {newest}; install a newer TensorFlow."
    if hardware.gpus() and order.collective_device() == "CPU:0":
        return "collectives run on the CPU (TFDIST_GPU_OPERATIONS=mpi), but XLA compiles for the GPU."
    return None
