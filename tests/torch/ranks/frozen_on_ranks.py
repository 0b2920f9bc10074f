"""Parameters without gradients at a step: frozen since, or of a kind that no rank has seen yet."""

import logging

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import MismatchError


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def own(whole):
    return whole[hvd.rank() * 6 : (hvd.rank() + 1) * 6]


MOVING = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
}
COMPRESSIONS = {"none": hvd.Compression.none, "custom": type("Same", (), {})()}
COMPRESSIONS["custom"].compress = lambda tensor: (tensor[None], tensor.max())  # of no elements there is none
COMPRESSIONS["custom"].decompress = lambda tensor, _: tensor[0]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("groups", [None, 4])
@pytest.mark.parametrize("kind", MOVING)
def test_a_layer_that_is_frozen_and_trained_again(size, kind, groups, scales, compression):
    """Nothing moves it meanwhile, as in one process."""

    def fit(model, optimizer, take):
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scales)
        moved = []
        for step in range(7):
            model[0].requires_grad_(step not in (2, 3, 5))
            before = model[0].weight.detach().clone()
            torch.manual_seed(step)
            optimizer.zero_grad()
            scaler.scale(model(take(torch.randn(6 * size, 4).double())).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            moved.append(not torch.equal(before, model[0].weight))
            assert (model[0].weight.grad is not None) == moved[-1]
        assert moved == [True, True, False, False, True, False, True]
        return [parameter.detach() for parameter in model.parameters()]

    alone, model = model_of(), model_of()
    expected = fit(alone, MOVING[kind](alone.parameters()), lambda whole: whole)
    options = {"groups": groups, "compression": COMPRESSIONS[compression]}
    found = fit(model, hvd.DistributedOptimizer(MOVING[kind](model.parameters()), **options), own)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_layer_that_one_rank_has_frozen(rank, size, groups, sparse):
    """It has a bucket of its own, or not; the step after is one like any other."""
    torch.manual_seed(1)
    table, head = torch.nn.Embedding(5, 2, sparse=sparse), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
    named = [("table", table.weight), ("weight", head.weight), ("bias", head.bias)]
    hvd.DistributedOptimizer(optimizer, named, groups=groups)
    named_by = "sparse table" if sparse else r"table \(requires_grad=False and no gradient\)"
    for step in range(3):
        table.requires_grad_(step != 1 or rank != size - 1)
        optimizer.zero_grad()
        head(table(torch.tensor([rank, 4]))).sum().backward()
        if step == 1 and size > 1:
            with pytest.raises(MismatchError, match=named_by):
                optimizer.step()
        else:
            optimizer.step()


def test_the_warning_says_what_zeros_do(size, caplog):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(MOVING["adamw"](model.parameters()), model.named_parameters())
    with caplog.at_level(logging.WARNING):
        model[0](own(torch.ones(6 * size, 4).double())).sum().backward()
        optimizer.step()
    assert "2.bias has no gradient on this rank at step(); it counts as zeros, so momentum" in caplog.text


class Tabled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table, self.head = torch.nn.Embedding(9, 3, sparse=True).double(), torch.nn.Linear(3, 1).double()

    def forward(self, places):
        rows = torch.ones(2, 3).double() if places is None else self.table(places)
        return self.head(rows).square().mean()


@pytest.mark.parametrize("form", ["plain", "as dense", "custom", "sum"])
@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize("first", ["one", "all"])
def test_a_table_that_is_first_used_later(rank, size, first, groups, form):
    """By one rank or by all: from then on its gradients are sparse on each, as SparseAdam needs them."""
    everybody = range(size)
    users = [(), (), everybody if first == "all" else [size - 1], (), everybody, [0]]
    options = {
        "plain": {},
        "as dense": {"sparse_as_dense": True},
        "custom": {"compression": COMPRESSIONS["custom"]},
        "sum": {"op": hvd.Sum},
    }[form]

    def fit(ranks, share, distributes):
        model = Tabled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributes:
            hvd.DistributedOptimizer(optimizer, groups=groups, **options)
        for step, those in enumerate(users):
            optimizer.zero_grad()
            for each in ranks:
                places = torch.tensor([each, 4 + step % 2]) if each in those else None
                (model(places) / share).backward()
            optimizer.step()
            assert step < 2 or not distributes or model.table.weight.grad.is_sparse
        return [parameter.detach() for parameter in model.parameters()]

    expected = fit(everybody, size, False)
    found = fit([rank], size if form == "sum" else 1, True)
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(found, expected, strict=True))
