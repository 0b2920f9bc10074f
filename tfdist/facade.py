"""What the two modules with Horovod's names share: names that tfdist has too, and explanations for those it lacks.

Not public: both modules take `__all__` from here.
"""

from __future__ import annotations

import os
from typing import NoReturn

from tfdist.observe import timeline
from tfdist.observe.timeline import stop_timeline
from tfdist.ops.barrier import barrier
from tfdist.ops.compression import Compression
from tfdist.ops.join import join
from tfdist.ops.reduction import Adasum, Average, Max, Min, Product, Sum
from tfdist.training.equality import check_equal
from tfdist.training.sync_batch_norm import SyncBatchNormalization
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

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "barrier",
    "ccl_built",
    "check_equal",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
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
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

GUIDE = "See docs/migrating-from-horovod.md."

_SESSIONS = "sessions and global variables belong to TensorFlow 1"
_INSIDE = "internal to Horovod"
_MODULE = "its public names are in tfdist.tensorflow"
_MISSING = {
    "LocalGradientAggregationHelper": f"{_INSIDE}: use backward_passes_per_step",
    "broadcast_global_variables": f"{_SESSIONS}: call broadcast_variables(model.weights, root_rank=0)",
    "check_extension": f"{_INSIDE}: importing tfdist reports what is missing",
    "check_num_rank_power_of_2": "Adasum takes any number of ranks",
    "compression": f"{_MODULE}, and Compressor is tfdist.compression.Compressor",
    "functions": _MODULE,
    "gpu_available": 'use tf.config.list_physical_devices("GPU")',
    "gradient_aggregation": _INSIDE,
    "gradient_aggregation_eager": _INSIDE,
    "handle_average_backwards_compatibility": "allreduce takes average= itself",
    "is_version_greater_equal_than": _INSIDE,
    "keras": "it is a module of its own here: import tfdist.keras as hvd",
    "mpi_ops": _MODULE,
    "refs_to_vars": _INSIDE,
    "split_list": _INSIDE,
    "sync_batch_norm": _MODULE,
    "util": _INSIDE,
    "vars_to_refs": _INSIDE,
}


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts recording what each collective does and when; see `tfdist.start_timeline`. Every rank calls it.

    Args:
        file_path: As `path` of `tfdist.start_timeline`.
        mark_cycles: As in `tfdist.start_timeline`.
    """
    timeline.start_timeline(file_path, mark_cycles)


def refuse(module: str, name: str) -> NoReturn:
    """Raises an error that explains why `module` lacks `name`, and what to use instead.

    Raises:
        AttributeError: Always.
    """
    reason = _MISSING.get(name)
    text = f"module {module!r} has no attribute {name!r}"
    raise AttributeError(f"{text}: {reason}. {GUIDE}" if reason else text)
