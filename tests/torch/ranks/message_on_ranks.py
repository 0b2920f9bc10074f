"""What a script is told where it and the optimizer are at odds: each message names what helps, and it does."""

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError


def model_of(outputs=2):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, outputs)).double()


def sgd(model, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


def rows(size, columns=4):
    """Those of this rank."""
    torch.manual_seed(1)
    return torch.randn(6 * size, columns).double()[hvd.rank() * 6 : (hvd.rank() + 1) * 6]


def alike(*models):
    mine = torch.cat([parameter.detach().flatten() for model in models for parameter in model.parameters()])
    return all(torch.equal(mine, row) for row in hvd.allgather(mine[None]))


def freeze(actor, critic, loss):
    critic.requires_grad_(False)
    loss().backward()
    critic.requires_grad_(True)


REMEDIES = {
    "requires_grad": freeze,
    "inputs": lambda actor, critic, loss: loss().backward(inputs=[*actor.parameters()]),
}


@pytest.mark.parametrize("remedy", [None, *REMEDIES])
def test_an_actor_and_a_critic(size, remedy):
    actor, critic = model_of(), torch.nn.Linear(2, 1).double()
    optimizers = sgd(actor), sgd(critic)

    def turn():
        optimizers[1].zero_grad()
        critic(actor(rows(size)).detach()).square().mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judged = lambda: -critic(actor(rows(size))).mean()  # noqa: E731
        REMEDIES[remedy](actor, critic, judged) if remedy else judged().backward()
        optimizers[0].step()

    turn()
    if remedy:
        turn()
        assert alike(actor, critic)
        return
    for call in (turn, lambda: critic(torch.ones(1, 2).double()).sum().backward()):  # the first ends where it begins
        with pytest.raises(ConfigError, match=r"(?s)an actor .* requires_grad_\(False\) .* loss.backward\(inputs=\["):
            call()
    with pytest.raises(ConfigError, match="was changed"):
        optimizers[1].synchronize()


def test_a_step_that_is_left_out(size):
    model = model_of()
    optimizer = sgd(model)
    for remedy in (False, False, True):
        model(rows(size)).square().mean().backward()
        if remedy:
            optimizer.synchronize()
            optimizer.zero_grad()
            continue
        model.zero_grad()
        with pytest.raises(
            ConfigError, match=r"optimizer.synchronize\(\) and .*; of model.zero_grad\(\) the optimizer"
        ):
            model(rows(size)).square().mean().backward()
        with pytest.raises(ConfigError, match=r"leave a step out, call optimizer.synchronize\(\) in its place"):
            optimizer.zero_grad()
        with pytest.raises(ConfigError, match="was changed"):
            optimizer.synchronize()
        optimizer.zero_grad()
    model(rows(size)).square().mean().backward()
    optimizer.step()
    assert alike(model)


@pytest.mark.parametrize("to_none", [True, False])
def test_passes_that_begin_anew(size, to_none):
    """The first of two has made what nobody wants, as of a batch that all ranks leave out."""
    alone, model = model_of(), model_of()
    optimizer, reference = sgd(model, backward_passes_per_step=2), torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad(set_to_none=to_none)
        for _ in range(step):
            model(rows(size)).sum().backward()
            optimizer.zero_grad(set_to_none=to_none)
        reference.zero_grad()
        for part in range(2):
            model(rows(size) + part).square().mean().backward()
            torch.manual_seed(1)
            alone(torch.randn(6 * size, 4).double() + part).square().mean().backward()
        optimizer.step()
        reference.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)


def test_a_newer_optimizer_that_was_made_too_early(size):
    model = model_of()
    first = sgd(model)
    later = sgd(model)
    model(rows(size)).sum().backward()
    first.step()
    with pytest.raises(ConfigError, match="An older optimizer has such parameters too, and this one took them over"):
        model(rows(size)).sum().backward()
    with pytest.raises(ConfigError, match="was changed"):
        later.synchronize()
    only = model_of()
    sgd(only)
    only(rows(size)).sum().backward()
    with pytest.raises(ConfigError) as raised:
        only(rows(size)).sum().backward()
    assert "older" not in str(raised.value)


def test_a_layer_that_is_trained_later(size):
    """What the message says gives the weights of an optimizer that had both from the start of that step."""
    model = model_of()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    hvd.DistributedOptimizer(optimizer)
    model(rows(size)).square().mean().backward()
    optimizer.step()
    state = optimizer.state_dict()
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": [*model[0].parameters()], "lr": 0.01})
    optimizer.zero_grad()
    model(rows(size)).square().mean().backward()
    with pytest.raises(ConfigError, match=r"new.load_state_dict\(.*new.add_param_group\(.*DistributedOptimizer\(new\)"):
        optimizer.step()
    optimizer.synchronize()
    new = torch.optim.SGD(model[2].parameters(), lr=0.5, momentum=0.9)
    new.load_state_dict(state)
    new.add_param_group({"params": [*model[0].parameters()], "lr": 0.01})
    hvd.DistributedOptimizer(new)
    assert [group["lr"] for group in new.param_groups] == [0.1, 0.01] and len(new.state) == 2
    before = model[0].weight.detach().clone()
    new.zero_grad()
    model(rows(size)).square().mean().backward()
    new.step()
    assert alike(model) and not torch.equal(model[0].weight, before)
