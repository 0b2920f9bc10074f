"""Parameters, states of optimizers and objects, from one rank to all."""

import threading

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError, MismatchError


def model_of(rank):
    torch.manual_seed(rank)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def equal_on_ranks(tensors):
    flat = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])
    return all(torch.equal(part, flat) for part in hvd.allgather(flat[None]))


@pytest.mark.parametrize("form", ["state_dict", "named_parameters", "parameters"])
def test_broadcast_parameters(rank, size, form):
    model, root = model_of(rank), size - 1
    hvd.broadcast_parameters(getattr(model, form)(), root_rank=root)
    assert equal_on_ranks(model.parameters())
    assert torch.equal(model[0].weight, model_of(root)[0].weight)
    assert model[0].weight.requires_grad


def test_broadcast_parameters_refuses_what_differs(rank, size):
    with pytest.raises(ConfigError, match="'extra', a int"):
        hvd.broadcast_parameters({"extra": 3}, root_rank=0)
    with pytest.raises(ConfigError, match="expects model"):
        hvd.broadcast_parameters(torch.ones(3), root_rank=0)
    if size > 1:
        with pytest.raises(MismatchError, match="other"):
            hvd.broadcast_parameters({"weight" if rank else "other": torch.ones(3)}, root_rank=0)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_broadcast_optimizer_state(rank, size, kind):
    """The root has taken steps, and the others none, with other settings."""
    model, root = model_of(0), size - 1
    settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1 * (rank + 1), **settings)
    if rank == root:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).sum().backward()
            optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root)
    before = [parameter.clone() for parameter in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root)
    assert all(map(torch.equal, before, model.parameters()))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * size)
    states = [value for part in optimizer.state.values() for value in part.values() if isinstance(value, torch.Tensor)]
    assert states and equal_on_ranks(states)
    torch.manual_seed(1)
    optimizer.zero_grad()
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    assert equal_on_ranks(model.parameters())


def test_optimizer_state_that_cannot_be_sent():
    model = model_of(0)
    with pytest.raises(ConfigError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


def test_objects(rank, size):
    root = size - 1
    assert hvd.broadcast_object({"rank": rank, "f": lambda: rank}, root)["rank"] == root
    assert hvd.allgather_object((rank, "x" * 1000 * rank)) == [(r, "x" * 1000 * r) for r in range(size)]
    for collective in (lambda value: hvd.broadcast_object(value, root), hvd.allgather_object):
        with pytest.raises(ConfigError, match=f"object of rank {root} cannot be pickled there"):
            collective(threading.Lock() if rank == root else 1)


class Refuses:
    """Cannot be made again on the last rank."""

    def __reduce__(self):
        return _made_again, ()


def _made_again():
    if hvd.rank() == hvd.size() - 1:
        raise RuntimeError("no such license")
    return 1


def test_an_object_that_one_rank_cannot_load_is_an_error_on_all(size):
    for collective in (lambda value: hvd.broadcast_object(value, 0, "license"), hvd.allgather_object):
        with pytest.raises(ConfigError, match=rf"unpickled on rank {size - 1} \(the object of rank 0: Runtime"):
            collective(Refuses())
