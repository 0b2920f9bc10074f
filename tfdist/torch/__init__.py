"""Distributed training for PyTorch, with the names of `horovod.torch`. Imports neither TensorFlow nor Keras."""

from __future__ import annotations

import os

from tfdist.errors import BuildError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise BuildError(f"tfdist.torch needs PyTorch: {error}. Install it: pip install 'tfdist[torch]'") from None

from tfdist.observe import timeline
from tfdist.observe.timeline import stop_timeline
from tfdist.ops.reduction import Adasum, Average, Max, Min, Product, Sum
from tfdist.torch import compiled, elastic
from tfdist.torch.collective.allgather import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from tfdist.torch.collective.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from tfdist.torch.collective.alltoall import alltoall, alltoall_async
from tfdist.torch.collective.barrier import barrier
from tfdist.torch.collective.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from tfdist.torch.collective.compression import Compression
from tfdist.torch.collective.handle import poll, synchronize
from tfdist.torch.collective.object import allgather_object, broadcast_object
from tfdist.torch.collective.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from tfdist.torch.collective.sparse import sparse_allreduce_async
from tfdist.torch.sync_batch_norm import SyncBatchNorm
from tfdist.torch.training.ddp_hook import ddp_comm_hook
from tfdist.torch.training.join import join
from tfdist.torch.training.optimizer import DistributedOptimizer
from tfdist.torch.training.state import broadcast_optimizer_state, broadcast_parameters
from tfdist.world.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from tfdist.world.runtime import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)

compiled.keep_out()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts recording what each collective does and when; see `tfdist.start_timeline`. Every rank calls it.

    Args:
        file_path: As `path` of `tfdist.start_timeline`.
        mark_cycles: As in `tfdist.start_timeline`.
    """
    timeline.start_timeline(file_path, mark_cycles)


__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_comm_hook",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
