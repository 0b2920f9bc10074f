"""Tensors on a GPU: one script on CPUs and on a GPU, which the ranks may share; and what a rank without one is told."""

import pytest
import torch

# Ranks whose tensors are said to be on a GPU that they cannot use.
WITHOUT_A_GPU = """
import torch, tfdist.torch as hvd
from tfdist.native.collective import Gpu
from tfdist.torch.collective import tensor
hvd.init()
gpu_of, tensor.gpu_of = tensor.gpu_of, lambda tensors: Gpu(0, 1)
for start in hvd.allreduce_async, lambda own: hvd.broadcast_async(own, 0):
    try:
        hvd.synchronize(start(torch.ones(2)))
    except Exception as error:
        print("ended by", type(error).__name__, "and", error)
tensor.gpu_of = gpu_of
assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2, 2]
"""
SCRIPT = """
import sys, torch
import tfdist.torch as hvd

hvd.init()
rank, size, device = hvd.rank(), hvd.size(), sys.argv[1]
if device == "cuda":
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())

for dtype in torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64:
    own = torch.arange(5, device=device).to(dtype) + rank
    kept, doubled = own.clone(), own.to(torch.float64) * size + sum(range(size)) - rank * size
    assert torch.equal(hvd.allreduce(own, op=hvd.Sum).double(), doubled) and torch.equal(own, kept)
    assert torch.equal(hvd.broadcast(own, size - 1).double(), torch.arange(5.0, device=device).double() + size - 1)
    assert hvd.allgather(own).shape == (5 * size,) and hvd.reducescatter(own).device == own.device
    assert hvd.allreduce_(own, op=hvd.Max) is own and own[0] == size - 1

# What is put into the stream behind a collective changes nothing in it.
large = torch.full((1 << 20,), float(rank + 1), device=device)
for step in range(4):
    handle = hvd.allreduce_async(large, name=f"large {step}", op=hvd.Sum)
    for _ in range(8):
        torch.mm(torch.ones(512, 512, device=device), torch.ones(512, 512, device=device))
    assert hvd.synchronize(handle).eq(sum(range(1, size + 1))).all()


def network():
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)


def train(model, optimizer, x):
    for _ in range(10):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


x = torch.randn(16 * size, 8, generator=torch.Generator().manual_seed(1)).to(device)
torch.manual_seed(rank)
model, alone = network(), network()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
alone.load_state_dict(model.state_dict())
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
ours = train(model, optimizer, x[rank::size])
expected = train(alone, torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9), x)
assert torch.allclose(ours, expected, atol=1e-5), (ours - expected).abs().max()
assert all(torch.equal(ours, row) for row in hvd.allgather(ours[None]))
print(f"all is equal on {device}")
"""


def missing(device):
    return pytest.mark.skipif(
        device == "cuda" and not torch.cuda.is_available(), reason="PyTorch sees no GPU: torch.cuda.is_available()"
    )


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, missing("cuda")])])
def test_collectives_and_training(launch, device, size):
    done = launch(size, "-c", SCRIPT, device, NCCL_MULTI_RANK_GPU_ENABLE="1")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"all is equal on {device}") == size, done.stdout


def test_ranks_without_the_gpu_of_their_tensors_are_told(launch):
    done = launch(2, "-c", WITHOUT_A_GPU, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout
    for name in "allreduce", "broadcast":
        assert done.stdout.count(f"ended by ConfigError and {name} 'noname.") == 2, done.stdout
    seen = [
        done.stdout.count(text) for text in ("the NVIDIA driver was not found", "no GPU is visible to this process")
    ]
    assert sorted(seen) == [0, 4], done.stdout
