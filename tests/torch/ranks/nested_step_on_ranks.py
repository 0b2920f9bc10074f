"""Optimizers whose step takes that of their parent, of which there is one too: PyTorch has hooks around both."""

import pytest
import torch

import tfdist.torch as hvd

SGD = torch.optim.SGD


class Logged(SGD):
    def step(self, closure=None):
        self.steps = getattr(self, "steps", 0) + 1
        return super().step(closure)


class Twice(Logged):
    def step(self, closure=None):
        return super().step(closure=closure)


class Clipped(SGD):
    def step(self, closure=None):
        loss = closure() if closure else None
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.clamp_(-0.05, 0.05)
        super().step()
        return loss


class Shrunk(SGD):
    """Changes parameters after the step of its parent, too, which gets another closure."""

    def counted(self, closure):
        def count():
            self.calls = getattr(self, "calls", 0) + 1
            return closure()

        return count

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(self.counted(closure) if closure else None)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.9)
        return loss


class Late(SGD):
    """Takes no closure to its parent."""

    def step(self, closure=None):
        if closure:
            closure()
        return super().step()


KINDS = [Logged, Twice, Clipped, Shrunk, Late]


@pytest.fixture(autouse=True)
def _parents():
    """Each of them has one of its own class, so that PyTorch has its hooks around the steps of all."""
    for kind in (SGD, *KINDS):
        kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def fit(model, optimizer, take, size, calls, share=1):
    """Returns the weights and the losses that closures have returned."""
    losses = []
    for step in range(5):
        torch.manual_seed(step)
        rows = take(torch.randn(6 * size, 4).double())

        def closure():
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = model(rows).square().mean() / share  # noqa: B023 -- called in this turn
            loss.backward()
            return loss.detach()

        if calls:
            losses.append(optimizer.step(closure))
        else:
            closure()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], losses


def own(whole):
    return whole[hvd.rank() * 6 : (hvd.rank() + 1) * 6]


@pytest.mark.parametrize("calls", [False, True], ids=["alone", "closure"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.value)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_reduced_once(size, kind, op, calls):
    alone, model = model_of(), model_of()
    expected, losses = fit(alone, kind(alone.parameters(), lr=0.1), lambda whole: whole, size, calls)
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.1), op=op)
    found, own_losses = fit(model, optimizer, own, size, calls, share=size if op is hvd.Sum else 1)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))
    assert [each is None for each in own_losses] == [each is None for each in losses]
    both = [(a, b) for a, b in zip(own_losses, losses, strict=True) if b is not None]
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in both)


@pytest.mark.parametrize("kind", KINDS)
def test_adasum_combines_all_that_a_step_changes(size, kind):
    """Ranks with equal batches take the step of one."""
    alone, model = model_of(), model_of()
    expected, _ = fit(alone, kind(alone.parameters(), lr=0.1), lambda whole: whole[:6], size, calls=False)
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.1), op=hvd.Adasum)
    found, _ = fit(model, optimizer, lambda whole: whole[:6], size, calls=False)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))


class Failing(SGD):
    fails = True

    def step(self, closure=None):
        if self.fails:
            raise RuntimeError("out of memory")
        return super().step(closure)


def test_the_step_after_one_that_has_failed(size):
    """It reduces like any other, also gradients that came by no backward pass."""
    alone, model = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(Failing(model.parameters(), lr=0.1))
    reference = SGD(alone.parameters(), lr=0.1)
    torch.manual_seed(9)
    rows = torch.randn(6 * size, 4).double()
    for Failing.fails in (True, False):
        losses = ((model, model(own(rows))), (alone, alone(rows)))
        for each, result in losses:
            gradients = torch.autograd.grad(result.square().mean(), [*each.parameters()])
            for parameter, gradient in zip(each.parameters(), gradients, strict=True):
                parameter.grad = gradient
        if Failing.fails:
            with pytest.raises(RuntimeError, match="out of memory"):
                optimizer.step()
            continue
        optimizer.step()
        reference.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)
