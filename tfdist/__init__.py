"""Distributed training for Keras 3 on TensorFlow: the public names, each loaded on first use.

Importing this package imports neither TensorFlow nor Keras, so that launching stays quick. One exception: where there
is NVIDIA's driver a rank takes its GPU, since a script may make tensors before it calls anything of tfdist.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "tfdist.world.runtime": (
        "init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous "
        "mpi_threads_supported mpi_built mpi_enabled nccl_built cuda_built gloo_built gloo_enabled ccl_built ddl_built "
        "rocm_built"
    ),
    "tfdist.world.process_sets": (
        "ProcessSet global_process_set add_process_set remove_process_set get_process_set_ids_and_ranks"
    ),
    "tfdist.ops.reduction": "Average Sum Min Max Product Adasum",
    "tfdist.ops.compression": "Compression",
    "tfdist.ops.allreduce": "allreduce grouped_allreduce",
    "tfdist.ops.allgather": "allgather grouped_allgather",
    "tfdist.ops.alltoall": "alltoall",
    "tfdist.ops.reducescatter": "reducescatter grouped_reducescatter",
    "tfdist.ops.join": "join",
    "tfdist.ops.topology": "rank_op size_op local_rank_op local_size_op process_set_included_op",
    "tfdist.ops.broadcast": "broadcast grouped_broadcast broadcast_ broadcast_variables",
    "tfdist.ops.barrier": "barrier",
    "tfdist.ops.object": "broadcast_object broadcast_object_fn allgather_object",
    "tfdist.training.equality": "check_equal",
    "tfdist.training.optimizer": "DistributedOptimizer PartialDistributedOptimizer",
    "tfdist.training.gradient_tape": "DistributedGradientTape PartialDistributedGradientTape",
    "tfdist.training.sync_batch_norm": "SyncBatchNormalization",
    "tfdist.input.shard": "shard",
    "tfdist.observe.timeline": "start_timeline stop_timeline",
    "tfdist.observe.meter": "metrics",
    "tfdist.launch.function.function_job": "run",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {name: f"tfdist.{name}" for name in "callbacks config data_service elastic errors ops testing".split()} | {
    "compression": "tfdist.ops.compression",
    "data": "tfdist.input.shard",
    "optimizer": "tfdist.training.optimizer",
    "process_sets": "tfdist.world.process_sets",
    "runtime": "tfdist.world.runtime",
}

__all__ = sorted([*_NAMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _take_gpu() -> None:
    from tfdist.native import gpu

    gpu.take_early()


def _make_fit_elastic() -> None:
    from tfdist import config
    from tfdist.system import after_import

    def install() -> None:
        importlib.import_module("tfdist.elastic.keras_fit").install()

    if config.is_elastic():
        after_import.after_import("keras", install)


def _speak_as_one() -> None:
    """The same errors for `except` of tfdist and of TensorFlow, and a line of a log that says which rank it is from."""
    from tfdist.system import after_import, united_error
    from tfdist.world import log_prefix

    after_import.after_import("tensorflow", united_error.install)
    log_prefix.install()


if os.path.exists("/dev/nvidiactl"):
    _take_gpu()
_speak_as_one()
_make_fit_elastic()
