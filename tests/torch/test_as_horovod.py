"""A script for horovod.torch runs as it is, without TensorFlow and Keras."""

import pytest

SCRIPT = """
import sys, torch
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce_async, synchronize
from horovod.torch.compression import Compression, Compressor, FP16Compressor
from horovod.torch.functions import broadcast_object
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.common.util import check_extension
check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", '', "mpi_lib_v2")
hvd.init()
total = sum(range(1, hvd.size() + 1))
assert synchronize(allreduce_async(torch.ones(2) * (hvd.rank() + 1), op=hvd.Sum)).tolist() == [total] * 2
assert hvd.Compression is Compression and hvd.SyncBatchNorm is SyncBatchNorm
assert hvd.mpi_ops.rank() == hvd.rank() and broadcast_object(hvd.rank(), 1) == 1
class Halved(Compressor):
    def compress(self, tensor):
        return tensor / 2, None
    def decompress(self, tensor, ctx):
        return tensor * 4
assert hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=Halved()).tolist() == [2 * hvd.size()] * 2
assert FP16Compressor is Compression.fp16
own = torch.ones(1, requires_grad=True)
(hvd.allgather(own).sum() * (hvd.rank() + 1)).backward()
assert own.grad.tolist() == [total / hvd.size()], own.grad  # Horovod's
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
assert hvd.elastic.ElasticSampler is ElasticSampler and hvd.elastic.TorchState is TorchState and hvd.elastic.run
assert not {"tensorflow", "keras"} & set(sys.modules)
print("done", hvd.rank())
"""


@pytest.mark.parametrize("by", ["variable", "call"])
def test_a_script_for_horovod(launch, refusing, by):
    script = refusing + SCRIPT
    if by == "variable":  # that of tfdistrun --as-horovod
        done = launch(2, "-c", script, TFDIST_AS_HOROVOD="1")
    else:
        done = launch(2, "-c", f"import tfdist; tfdist.as_horovod()\n{script}")
    assert done.returncode == 0, done.stdout
    assert "done 0" in done.stdout and "done 1" in done.stdout, done.stdout
