"""`DistributedDataParallel`, whose gradients travel through tfdist."""

import socket

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import tfdist.torch as hvd
from tfdist.errors import ConfigError

ROWS = 6


@pytest.fixture(scope="module", autouse=True)
def _group():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = hvd.broadcast_object(f"tcp://127.0.0.1:{probe.getsockname()[1]}", 0)
    distributed.init_process_group("gloo", init_method=address, rank=hvd.rank(), world_size=hvd.size())
    yield
    distributed.destroy_process_group()


def model_of(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(4, 50), torch.nn.Tanh(), torch.nn.Linear(50, 50), torch.nn.Tanh(), torch.nn.Linear(50, 2)]
    return torch.nn.Sequential(*layers).double()


def trained(model, take, size):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        torch.manual_seed(100 + step)
        inputs, targets = torch.randn(ROWS * size, 4).double(), torch.randn(ROWS * size, 2).double()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(take(inputs)), take(targets)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_weights_are_those_of_one_process(rank, size, compression):
    wrapped = DistributedDataParallel(model_of(rank), bucket_cap_mb=0.01)
    wrapped.register_comm_hook(None, hvd.ddp_comm_hook(compression))
    found = trained(wrapped, lambda whole: whole[rank * ROWS : (rank + 1) * ROWS], size)
    exact = compression is hvd.Compression.none
    assert torch.allclose(
        found, trained(model_of(0), lambda whole: whole, size), **({"rtol": 1e-12} if exact else {"atol": 1e-3})
    )
    assert all(torch.equal(found, other) for other in hvd.allgather(found[None]))


def test_an_error_ends_the_backward_pass(rank, size):
    """Rank 0 has another compression, so the ranks call different collectives."""
    wrapped = DistributedDataParallel(model_of(0))
    wrapped.register_comm_hook(None, hvd.ddp_comm_hook(hvd.Compression.none if rank else hvd.Compression.fp16))
    loss = wrapped(torch.ones(1, 4).double()).sum()
    if size == 1:
        loss.backward()
        return
    with pytest.raises(Exception, match="compression"):
        loss.backward()


def test_a_distributed_optimizer_beside_it(size):
    """Each of them averages."""
    wrapped = DistributedDataParallel(model_of(0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    wrapped(torch.ones(1, 4).double()).sum().backward()
    with pytest.raises(ConfigError, match="DistributedDataParallel averages gradients itself: take either it"):
        optimizer.step()


def test_wrong_compression():
    with pytest.raises(ConfigError, match="expects a member of Compression; received compression='fp16'"):
        hvd.ddp_comm_hook("fp16")
