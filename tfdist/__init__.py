"""Distributed training for Keras 3 on TensorFlow: the public names, each loaded on first use.

Importing this package imports neither TensorFlow nor Keras, so that launching stays fast. It still does two things,
since a script may make tensors or look up `model.fit` before it calls tfdist: a rank claims its GPU if there is an
NVIDIA driver, and an elastic job wraps `keras.Model.fit`. `TFDIST_EARLY=0` leaves them to `tfdist.init()` and
`DataParallel`; see docs/processes.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# For editors and type checkers; a test compares them with the table below.
if TYPE_CHECKING:
    from tfdist import callbacks as callbacks
    from tfdist import config as config
    from tfdist import data_service as data_service
    from tfdist import elastic as elastic
    from tfdist import errors as errors
    from tfdist import ops as ops
    from tfdist import ray as ray
    from tfdist import spark as spark
    from tfdist import testing as testing
    from tfdist.alias import as_horovod as as_horovod
    from tfdist.input import shard as data  # noqa: F401
    from tfdist.input.shard import shard as shard
    from tfdist.launch.function.function_job import run as run
    from tfdist.observe.meter import metrics as metrics
    from tfdist.observe.timeline import start_timeline as start_timeline
    from tfdist.observe.timeline import stop_timeline as stop_timeline
    from tfdist.ops import compression as compression
    from tfdist.ops.allgather import allgather as allgather
    from tfdist.ops.allgather import grouped_allgather as grouped_allgather
    from tfdist.ops.allreduce import allreduce as allreduce
    from tfdist.ops.allreduce import grouped_allreduce as grouped_allreduce
    from tfdist.ops.alltoall import alltoall as alltoall
    from tfdist.ops.barrier import barrier as barrier
    from tfdist.ops.broadcast import broadcast as broadcast
    from tfdist.ops.broadcast import broadcast_ as broadcast_
    from tfdist.ops.broadcast import broadcast_variables as broadcast_variables
    from tfdist.ops.broadcast import grouped_broadcast as grouped_broadcast
    from tfdist.ops.compression import Compression as Compression
    from tfdist.ops.join import join as join
    from tfdist.ops.object import allgather_object as allgather_object
    from tfdist.ops.object import broadcast_object as broadcast_object
    from tfdist.ops.object import broadcast_object_fn as broadcast_object_fn
    from tfdist.ops.reducescatter import grouped_reducescatter as grouped_reducescatter
    from tfdist.ops.reducescatter import reducescatter as reducescatter
    from tfdist.ops.reduction import Adasum as Adasum
    from tfdist.ops.reduction import Average as Average
    from tfdist.ops.reduction import Max as Max
    from tfdist.ops.reduction import Min as Min
    from tfdist.ops.reduction import Product as Product
    from tfdist.ops.reduction import Sum as Sum
    from tfdist.ops.topology import local_rank_op as local_rank_op
    from tfdist.ops.topology import local_size_op as local_size_op
    from tfdist.ops.topology import process_set_included_op as process_set_included_op
    from tfdist.ops.topology import rank_op as rank_op
    from tfdist.ops.topology import size_op as size_op
    from tfdist.training import optimizer as optimizer
    from tfdist.training.equality import check_equal as check_equal
    from tfdist.training.gradient_tape import DistributedGradientTape as DistributedGradientTape
    from tfdist.training.gradient_tape import PartialDistributedGradientTape as PartialDistributedGradientTape
    from tfdist.training.optimizer import DistributedOptimizer as DistributedOptimizer
    from tfdist.training.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
    from tfdist.training.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
    from tfdist.world import process_sets as process_sets
    from tfdist.world import runtime as runtime
    from tfdist.world.process_sets import ProcessSet as ProcessSet
    from tfdist.world.process_sets import add_process_set as add_process_set
    from tfdist.world.process_sets import get_process_set_ids_and_ranks as get_process_set_ids_and_ranks
    from tfdist.world.process_sets import global_process_set as global_process_set
    from tfdist.world.process_sets import remove_process_set as remove_process_set
    from tfdist.world.runtime import ccl_built as ccl_built
    from tfdist.world.runtime import cross_rank as cross_rank
    from tfdist.world.runtime import cross_size as cross_size
    from tfdist.world.runtime import cuda_built as cuda_built
    from tfdist.world.runtime import ddl_built as ddl_built
    from tfdist.world.runtime import gloo_built as gloo_built
    from tfdist.world.runtime import gloo_enabled as gloo_enabled
    from tfdist.world.runtime import init as init
    from tfdist.world.runtime import is_homogeneous as is_homogeneous
    from tfdist.world.runtime import is_initialized as is_initialized
    from tfdist.world.runtime import local_rank as local_rank
    from tfdist.world.runtime import local_size as local_size
    from tfdist.world.runtime import mpi_built as mpi_built
    from tfdist.world.runtime import mpi_enabled as mpi_enabled
    from tfdist.world.runtime import mpi_threads_supported as mpi_threads_supported
    from tfdist.world.runtime import nccl_built as nccl_built
    from tfdist.world.runtime import rank as rank
    from tfdist.world.runtime import rocm_built as rocm_built
    from tfdist.world.runtime import shutdown as shutdown
    from tfdist.world.runtime import size as size

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
    "tfdist.alias": "as_horovod",
    "tfdist.input.shard": "shard",
    "tfdist.observe.timeline": "start_timeline stop_timeline",
    "tfdist.observe.meter": "metrics",
    "tfdist.launch.function.function_job": "run",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}
_OPEN = "callbacks config data_service elastic errors ops ray spark testing"
_MODULES = {name: f"tfdist.{name}" for name in _OPEN.split()} | {
    "compression": "tfdist.ops.compression",
    "data": "tfdist.input.shard",
    "optimizer": "tfdist.training.optimizer",
    "process_sets": "tfdist.world.process_sets",
    "runtime": "tfdist.world.runtime",
}

__all__ = sorted([*_NAMES, *_MODULES, "__version__"])


def _load(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # where it is seen, any name is one
    __getattr__ = _load


def __dir__() -> list[str]:
    return __all__


def _elastic_fit() -> Any:
    return importlib.import_module("tfdist.elastic.keras_fit").fit


def _act_early() -> None:
    from tfdist import config
    from tfdist.system import after_import
    from tfdist.world import fit_hook, log_prefix, lone_training
    from tfdist.world.session import session

    log_prefix.install()
    if not config.is_early():
        return
    lone_training.watch_fit()
    importlib.import_module("tfdist.native.gpu").take_early(session.early)
    if config.is_elastic():
        after_import.after_import("keras", lambda: fit_hook.install(_elastic_fit))
        session.early.append("keras.Model.fit continues when a rank is lost")


_act_early()
