"""Parameters, states of optimizers and objects, from one rank to all."""

import copy
import inspect
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


# Those whose state can be sent, and that take dense gradients.
KINDS = {
    name: kind
    for name, kind in sorted(vars(torch.optim).items())
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
}
PLAIN = {"lr": 0.2}
OF_ROOT = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.2, "nesterov": True, "centered": True, "betas": (0.9, 0.99)}
OF_ROOT |= {"etas": (0.8, 2.4), "step_sizes": (1e-5, 100)}
OF_OTHERS = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.1, "nesterov": False, "betas": (0.8, 0.9)}
OF_OTHERS |= {"etas": (0.25, 1.75), "step_sizes": (1e-7, 5)}


def distributed(name, settings):
    model = model_of(0)
    parameters = [each for each in model.parameters() if each.dim() == 2 or name != "Muon"]
    known = inspect.signature(KINDS[name]).parameters
    chosen = {key: value for key, value in settings.items() if key in known}
    return model, hvd.DistributedOptimizer(KINDS[name](parameters, **chosen))


def take_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()


def same(one, other):
    """Of nested values: their types, too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("settings", [PLAIN, OF_ROOT], ids=["plain", "other settings"])
@pytest.mark.parametrize("name", KINDS)
def test_every_optimizer_resumes_on_the_root(rank, size, name, settings):
    """The root has loaded what it had saved; the others begin with settings of their own."""
    root = size - 1
    model, optimizer = distributed(name, settings)
    take_step(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    again, resumed = distributed(name, settings if rank == root or settings is PLAIN else OF_OTHERS)
    if rank == root:
        again.load_state_dict(model.state_dict())
        resumed.load_state_dict(saved)
    hvd.broadcast_parameters(again.state_dict(), root)
    hvd.broadcast_optimizer_state(resumed, root)
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    assert same(resumed.state_dict(), saved)
    take_step(again, resumed)
    assert equal_on_ranks(again.parameters())


def test_a_parameter_without_a_gradient():
    """No step is taken to make a state, so no parameter gets a gradient."""
    table = torch.nn.Module()
    table.places = torch.nn.Parameter(torch.tensor([1, 3]), requires_grad=False)
    table.values = torch.nn.Parameter(torch.rand(4))
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    hvd.DistributedOptimizer(optimizer, named_parameters=table.named_parameters())
    hvd.broadcast_parameters(table.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert table.places.grad is None and table.values.grad is None
    table.values[table.places].sum().backward()
    optimizer.step()
    assert table.places.grad is None and table.values.grad.tolist() == [0, 1, 0, 1]
    assert equal_on_ranks([table.values])


def test_a_default_device_changes_nothing(rank, size):
    """Here one without memory."""
    root = size - 1
    model, optimizer = distributed("Adam", PLAIN)
    take_step(model, optimizer)
    again, resumed = distributed("Adam", PLAIN)
    if rank == root:
        resumed.load_state_dict(optimizer.state_dict())
    own = torch.arange(2.0 * size)
    with torch.device("meta"):
        hvd.broadcast_parameters(again.state_dict(), root)
        hvd.broadcast_optimizer_state(resumed, root)
        results = hvd.allreduce(own), hvd.broadcast(own, root), hvd.allgather(own[:0]), hvd.alltoall(own[:0])
        assert {each.device.type for each in (*results, hvd.reducescatter(own))} == {"cpu"}
        assert hvd.allgather_object(rank) == list(range(size))
    assert same(resumed.state_dict(), optimizer.state_dict())


def test_optimizer_state_that_cannot_be_sent():
    model = model_of(0)
    with pytest.raises(ConfigError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


def test_objects(rank, size, own_set):
    root = size - 1
    first = own_set.ranks[0]
    own = {"number": 123, 0: [1, 2]} if rank == first else {}
    assert hvd.broadcast_object(own, first, process_set=own_set) == {"number": 123, 0: [1, 2]}
    assert hvd.allgather_object(rank, process_set=own_set) == own_set.ranks
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


def test_state_keeps_its_dtypes(rank):
    """`load_state_dict` casts what is of the form of a parameter."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    if rank == 0:
        optimizer.state[parameter] = {
            "master": torch.full((3,), 1 / 3),
            "count": torch.tensor(7),
            "half": torch.ones(3),
        }
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state[parameter]
    assert [state[name].dtype for name in ("master", "count", "half")] == [torch.float32, torch.int64, torch.float32]
    assert torch.equal(state["master"], torch.full((3,), 1 / 3)) and state["count"] == 7
