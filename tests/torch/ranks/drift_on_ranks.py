"""Parameters that differ between the ranks, and what would have made them differ without a word."""

import copy
import functools
import pickle

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError, MismatchError


def model_of(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def rows(size):
    torch.manual_seed(1)
    return torch.randn(6 * size, 4).double()


def own(whole):
    return whole[hvd.rank() * 6 : (hvd.rank() + 1) * 6]


def step(model, optimizer, inputs):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def sgd(model, lr=0.1, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=lr), **options)


OPERATIONS = [hvd.Average, hvd.Adasum]


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.value)
def test_other_parameters_before_the_first_step(rank, size, op):
    model = model_of(seed=3 + rank)
    optimizer = sgd(model, op=op, named_parameters=model.named_parameters())
    if size == 1:
        step(model, optimizer, rows(1))
        return
    message = r"(?s)before the first step 4 of 4 parameters differ .* 0:\n    0.weight float64 \[5, 4\]: rank 1 \d"
    with pytest.raises(MismatchError, match=message) as raised:
        step(model, optimizer, own(rows(size)))
    assert "hvd.broadcast_parameters(model.state_dict(), root_rank=0)" in str(raised.value)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    step(model, optimizer, own(rows(size)))


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.value)
def test_other_parameters_after_a_step(rank, size, op):
    """Steps 4 and 8 are looked at, and not those between them."""
    model = model_of()
    optimizer = sgd(model, op=op)
    for _ in range(5):
        step(model, optimizer, own(rows(size)))
    if size > 1 and rank == size - 1:
        model[2].bias.data.add_(1.0)
    for _ in range(2):
        step(model, optimizer, own(rows(size)))
    if size == 1:
        step(model, optimizer, rows(1))
        return
    with pytest.raises(MismatchError, match=r"(?s)after step 8 \d of 4 parameters differ .* state of the optimizer"):
        step(model, optimizer, own(rows(size)))


@pytest.mark.parametrize("how", ["rounding", "warn", "off"])
def test_what_is_no_error(rank, size, how, caplog):
    model = model_of()
    optimizer = sgd(model, drift="error" if how == "rounding" else how)
    if rank == size - 1:
        model[2].bias.data.add_(1e-6 if how == "rounding" else 1.0)
    for _ in range(2):
        step(model, optimizer, own(rows(size)))
    assert caplog.text.count("parameters differ between the ranks") == (how != "off" and size > 1)
    assert caplog.text.count("It may be rounding") == (how == "rounding" and size > 1)


def test_modes(rank, size):
    with pytest.raises(ConfigError, match="drift must be one of 'error', 'warn', 'off'; received 'no'"):
        sgd(model_of(), drift="no")
    model = model_of()
    optimizer = sgd(model, drift="off" if rank else "warn")
    if size > 1:
        with pytest.raises(MismatchError, match="the ranks have drift='off' and 'warn'"):
            step(model, optimizer, own(rows(size)))


def test_a_rank_that_joins_before_its_first_step(rank, size):
    """The others compare what they have; after the join all compare anew."""
    alone, model = model_of(), model_of()
    optimizer, reference = sgd(model), torch.optim.SGD(alone.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(2 if rank == 0 or epoch else 0):
            step(model, optimizer, own(rows(size)))
        for _ in range(2):
            reference.zero_grad()
            inputs = rows(size) if epoch else rows(size)[:6]
            (
                alone(inputs).square().mean() / (1 if epoch else size)
            ).backward()  # the mean counts those that have joined
            reference.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.join())
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.optim.Adam, functools.partial(torch.optim.SGD, momentum=0.9)])
def test_epochs_that_ranks_end_by_joining(rank, size, kind):
    """Who joins early misses what the optimizer remembers, too."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.05))
    for epoch in range(3):
        for _ in range(2 + rank if epoch < 2 else 4):
            step(model, optimizer, own(rows(size)))
        last = hvd.join()
        if epoch < 2:
            hvd.broadcast_parameters(model.state_dict(), last)
            hvd.broadcast_optimizer_state(optimizer, last)
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in map(torch.Tensor.detach, model.parameters()))


@pytest.mark.parametrize("groups", [None, 4])
def test_clipping_of_what_is_not_on_its_way_yet(size, groups):
    """Fewer backward passes than were announced, as at the end of an epoch."""
    model = model_of()
    optimizer = sgd(model, backward_passes_per_step=2, groups=groups)
    for _ in range(2):
        model(own(rows(size))).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with pytest.raises(ConfigError, match=r"was changed after backward\(\) and before step\(\)"):
            optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("by", ["optimizer", "model"])
def test_zeros_between_two_backward_passes(size, by, to_none):
    alone, model = model_of(), model_of()
    optimizer, reference = sgd(model, backward_passes_per_step=2), torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(own(rows(size))).sum().backward()
        (optimizer if by == "optimizer" else model).zero_grad(set_to_none=to_none)
        model(own(rows(size))).square().mean().backward()
        optimizer.step()
        step(alone, reference, rows(size))
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)


def test_a_copy_is_refused():
    optimizer = sgd(model_of())
    for attempt in copy.copy, copy.deepcopy, pickle.dumps:
        with pytest.raises(ConfigError, match="cannot be copied or pickled"):
            attempt(optimizer)


def test_sums_are_not_added_up_again(size):
    """A step without a backward pass, and optimizers that share a layer."""
    model = model_of()
    optimizer = sgd(model, op=hvd.Sum)
    step(model, optimizer, own(rows(size)))
    if size == 1:
        optimizer.step()
        return
    with pytest.raises(ConfigError, match="already the sum over the ranks"):
        optimizer.step()
    trunk, heads = torch.nn.Linear(4, 4).double(), [torch.nn.Linear(4, 1).double() for _ in range(2)]
    hvd.broadcast_parameters(torch.nn.ModuleList([trunk, *heads]).state_dict(), root_rank=0)
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.1), op=hvd.Sum)
        for head in heads
    ]
    sum(head(trunk(own(rows(size)))).sum() for head in heads).backward()
    optimizers[0].step()
    with pytest.raises(ConfigError, match="already the sum over the ranks"):
        optimizers[1].step()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.value)
def test_a_new_optimizer_takes_over(size, op):
    """The old one lives on, and reduces no more in the backward pass."""
    alone, model = model_of(), model_of()
    rate = 0.1 if op is hvd.Average else 0.1 / size
    stages = [sgd(model, rate, op=op)]
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for number in range(6):
        if number == 3:
            stages.append(sgd(model, rate, op=op))
        step(model, stages[-1], own(rows(size)))
        step(alone, reference, rows(size))
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)


def test_adasum_takes_over_from_averages(size):
    """Each rank takes its own step, so nothing averages its gradients on the way."""
    model = model_of()
    first = sgd(model)
    step(model, first, own(rows(size)))
    optimizer = sgd(model, op=hvd.Adasum)
    for _ in range(3):
        optimizer.zero_grad()
        expected = torch.autograd.grad(model(own(rows(size))).square().mean(), list(model.parameters()))
        model(own(rows(size))).square().mean().backward()
        assert not first._tfdist.is_under_way()
        assert all(torch.equal(each.grad, mine) for each, mine in zip(model.parameters(), expected, strict=True))
        optimizer.step()


def test_adasum_refuses_gradients_that_it_does_not_have(size):
    model = model_of()
    model[0].requires_grad_(False)
    optimizer = sgd(model, op=hvd.Adasum)
    step(model, optimizer, own(rows(size)))
    model[0].requires_grad_(True)
    with pytest.raises(ConfigError, match="2 parameters have a gradient, but were not in the optimizer"):
        step(model, optimizer, own(rows(size)))


@pytest.mark.parametrize("fused", [True, False])
def test_a_scaler_and_adasum(rank, size, fused):
    """An infinity on one rank skips the step of all."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1, fused=fused), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for number in range(3):
        before = copy.deepcopy([parameter.detach() for parameter in model.parameters()])
        optimizer.zero_grad()
        infinite = number == 1 and rank == size - 1
        scaler.scale(model(own(rows(size))).square().mean() * (float("inf") if infinite else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        stays = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert all(stays) == any(stays) == (number == 1)
        assert scaler.get_scale() == (64.0 if number == 0 else 32.0)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.value)
@pytest.mark.parametrize("search", ["strong_wolfe", None])
def test_a_step_that_depends_on_the_loss(size, op, search):
    def fit(model, inputs, distributes):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn=search)
        if distributes:
            hvd.DistributedOptimizer(optimizer, op=op)

        def closure():
            optimizer.zero_grad()
            loss = model(inputs).square().mean() / (size if distributes and op is hvd.Sum else 1)
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(3)], list(model.parameters())

    (losses, ours), (expected, theirs) = fit(model_of(), own(rows(size)), True), fit(model_of(), rows(size), False)
    assert losses == pytest.approx(expected, rel=1e-9)
    assert all(torch.allclose(a, b, rtol=1e-8) for a, b in zip(ours, theirs, strict=True))


def test_a_tensor_that_a_backward_pass_needs():
    """As after an operation in place of PyTorch's own."""
    for change in hvd.allreduce_, lambda own: hvd.grouped_allreduce_([own]), lambda own: hvd.broadcast_(own, 0):
        weight = torch.ones(3, requires_grad=True)
        doubled = weight * 2
        loss = doubled.square().sum()
        change(doubled.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
