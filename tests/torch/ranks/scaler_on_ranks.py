"""`GradScaler` where the ranks have other backward passes: all take a step, or none does."""

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError

# In these steps the loss of the last rank is infinite, or it has none; the last step is one without the scaler.
INFINITE, LACKING, STEPS = (1, 4), (2, 5), 6


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def loss_of(model, step, rank):
    """None on a rank that lacks one."""
    last = rank == hvd.size() - 1
    if last and step in LACKING:
        return None
    torch.manual_seed(10 * step + rank)
    loss = model(torch.randn(6, 4).double()).square().mean()
    return loss * float("inf") if last and step in INFINITE else loss


def give(model, loss, by):
    """Gradients of a loss, as scripts make them."""
    if loss is not None and by == "backward":
        loss.backward()
    elif loss is not None:
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
        ):
            parameter.grad = gradient


def fit(model, optimizer, losses, by, to_none, clips):
    """`losses` gives those of a step that count here; returns the weights, and the scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        scaled = step < STEPS - 1
        loss = losses(step)
        give(model, scaler.scale(loss) if scaled and loss is not None else loss, by)
        if not scaled:
            optimizer.step()
            continue
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach() for parameter in model.parameters()], scaler.get_scale()


def mean_of_all(model):
    """The loss of one process, to which a rank without one adds nothing."""

    def loss(step):
        losses = [loss_of(model, step, rank) for rank in range(hvd.size())]
        nothing = sum(parameter.sum() for parameter in model.parameters()) * 0
        return sum((each for each in losses if each is not None), nothing) / hvd.size()

    return loss


@pytest.mark.parametrize("kind", ["sgd", "fused"])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("by", ["backward", "autograd.grad"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.value)
def test_a_rank_without_a_backward_pass(rank, size, op, by, to_none, clips, kind):
    def make(parameters, rate):
        if kind == "fused":
            return torch.optim.SGD(parameters, lr=rate, momentum=0.9, fused=True)
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9)

    alone, model = model_of(), model_of()
    expected, scale = fit(alone, make(alone.parameters(), 0.1), mean_of_all(alone), "backward", True, clips)
    assert scale == 16.0
    # A sum is divided in the loss, so that it is clipped alike.
    share = size if op is hvd.Sum else 1
    optimizer = hvd.DistributedOptimizer(make(model.parameters(), 0.1), op=op)

    def own(step):
        loss = loss_of(model, step, rank)
        return None if loss is None else loss / share

    found, own_scale = fit(model, optimizer, own, by, to_none, clips)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))
    assert own_scale == scale
    assert all(len({row.tobytes() for row in hvd.allgather(each[None]).numpy()}) == 1 for each in found)


@pytest.mark.parametrize("kind", ["plain", "fused"])
@pytest.mark.parametrize("to_none", [True, False])
def test_adasum_of_a_rank_without_a_backward_pass(rank, to_none, kind):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=kind == "fused")
    hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    found, scale = fit(model, optimizer, lambda step: loss_of(model, step, rank), "backward", to_none, clips=False)
    assert scale == 16.0
    assert all(len({row.tobytes() for row in hvd.allgather(each[None]).numpy()}) == 1 for each in found)


def test_a_step_that_the_script_leaves_out(rank, size):
    """After `unscale_`, or after a `synchronize` of its own; the next one reduces, by whichever way."""
    alone, model = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    total = mean_of_all(alone)
    for step, waits in enumerate([None, None, scaler.unscale_, None, type(optimizer).synchronize, None]):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        give(model, None if loss is None else scaler.scale(loss), "autograd.grad")
        if waits is not None:
            waits(optimizer)
        elif step not in INFINITE:
            scaler.step(optimizer)
            reference.zero_grad()
            total(step).backward()
            reference.step()
        if waits is not type(optimizer).synchronize:
            scaler.unscale_(optimizer) if step in INFINITE else None
            scaler.update()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)


def test_a_plain_step_after_one_that_was_skipped(rank, size):
    """Its gradients come without a hook, and nothing has put the last ones aside."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    give(model, scaler.scale(loss_of(model, 0, rank) * float("inf")), "autograd.grad")
    scaler.step(optimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, rank + 1.0)
    optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old - 0.5 * (size + 1) / 2)


def test_a_gradient_that_nobody_reduces_is_named_before(size):
    """What a scaler finds in it would be this rank's alone."""
    model = model_of()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model[0].requires_grad_(True)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(loss_of(model, 3, 0)).backward()
    with pytest.raises(ConfigError, match="2 parameters have a gradient, but were not in the optimizer"):
        scaler.step(optimizer)
    optimizer.synchronize()
