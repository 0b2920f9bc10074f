"""Gradients of the collectives: those of the sum over the ranks of what each differentiates."""

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import UnsupportedError
from tfdist.world.session import session


def weights(rank, shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) + rank + 1


def gradient_of(collective, own, rank):
    """Of sum(weights * result) on every rank, with respect to this rank's tensor."""
    result = collective(own)
    (result * weights(rank, result.shape)).sum().backward()
    return own.grad


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_allreduce(rank, size, op):
    own = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    total = sum(weights(r, (3, 2)) for r in range(size)) * 2
    expected = total / size if op is hvd.Average else total
    assert torch.equal(gradient_of(lambda x: hvd.allreduce(x, op=op, postscale_factor=2.0), own, rank), expected)
    largest = hvd.allreduce(own, op=hvd.Max)
    with pytest.raises(UnsupportedError, match="by max"):
        largest.sum().backward()


def test_grouped_allreduce_of_some_that_need_none(rank, size):
    own = torch.ones(2, requires_grad=True)
    first, second = hvd.grouped_allreduce([torch.ones(2), own], op=hvd.Sum)
    assert not torch.isnan(first).any()
    (second * (rank + 1)).sum().backward()
    assert own.grad.tolist() == [sum(range(1, size + 1))] * 2


def test_allgather(rank, size):
    own = torch.randn(rank + 1, 2, dtype=torch.float64, requires_grad=True)
    shape = (sum(range(1, size + 1)), 2)
    first = sum(range(1, rank + 1))
    expected = sum(weights(r, shape) for r in range(size))[first : first + rank + 1]
    assert torch.equal(gradient_of(hvd.allgather, own, rank), expected)


def test_broadcast(rank, size):
    own = torch.randn(3, dtype=torch.float64, requires_grad=True)
    expected = sum(weights(r, (3,)) for r in range(size)) if rank == size - 1 else torch.zeros(3)
    assert torch.equal(gradient_of(lambda x: hvd.broadcast(x, size - 1), own, rank), expected.double())


def test_alltoall(rank, size):
    own = torch.randn(size, 2, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([weights(r, (size, 2))[rank] for r in range(size)])
    assert torch.equal(gradient_of(hvd.alltoall, own, rank), expected)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_reducescatter(rank, size, op):
    own = torch.randn(5, dtype=torch.float64, requires_grad=True)
    shares = [len(part) for part in torch.tensor_split(torch.zeros(5), size)]
    expected = torch.cat([weights(r, (share,)) for r, share in enumerate(shares)])
    expected = expected / size if op is hvd.Average else expected
    assert torch.allclose(gradient_of(lambda x: hvd.reducescatter(x, op=op), own, rank), expected, rtol=1e-15)


# What differentiates; the gradient of the sum of its result, and Horovod's: among `n` ranks, of the last or another.
GRADIENTS = {
    "sum": (lambda x, **on: hvd.allreduce(x, op=hvd.Sum, **on), lambda n, _: n, lambda n, _: n),
    "average": (hvd.allreduce, lambda n, _: 1, lambda n, _: 1),
    "grouped sum": (
        lambda x, **on: hvd.grouped_allreduce([x, x], op=hvd.Sum, **on)[1],
        lambda n, _: n,
        lambda n, _: n,
    ),
    "grouped average": (lambda x, **on: hvd.grouped_allreduce([x, x], **on)[1], lambda n, _: 1, lambda n, _: 1),
    "allgather": (hvd.allgather, lambda n, _: n, lambda n, _: 1),
    "grouped allgather": (lambda x, **on: hvd.grouped_allgather([x, x], **on)[1], lambda n, _: n, lambda n, _: 1),
    "broadcast": (
        lambda x, process_set: hvd.broadcast(x, process_set.ranks[-1], process_set=process_set),
        lambda n, is_last: n * is_last,
        lambda n, is_last: int(is_last),
    ),
    "alltoall": (hvd.alltoall, lambda n, _: 1, lambda n, _: 1),
    "alltoall with splits": (
        lambda x, process_set: hvd.alltoall(x, [2] * process_set.size(), process_set=process_set)[0],
        lambda n, _: 1,
        lambda n, _: 1,
    ),
    "reducescatter": (lambda x, **on: hvd.reducescatter(x, op=hvd.Sum, **on), lambda n, _: 1, lambda n, _: n),
    "average of reducescatter": (hvd.reducescatter, lambda n, _: 1 / n, lambda n, _: 1),
    "grouped reducescatter": (
        lambda x, **on: hvd.grouped_reducescatter([x, x], op=hvd.Sum, **on)[1],
        lambda n, _: 1,
        lambda n, _: n,
    ),
}


@pytest.mark.parametrize("chosen", ["exact", "0.28"])
@pytest.mark.parametrize("what", GRADIENTS)
def test_ours_and_horovods(rank, own_set, monkeypatch, what, chosen):
    monkeypatch.setattr(session, "gradients", chosen)
    collective, *expected = GRADIENTS[what]
    for among in (hvd.global_process_set, own_set):
        count = among.size()
        value = expected[chosen == "0.28"](count, rank == among.ranks[-1])
        for dtype in (torch.float16, torch.float32, torch.float64):
            for row in ((), (3,), (3, 2)):
                own = torch.full((2 * count, *row), rank + 1.0, dtype=dtype, requires_grad=True)
                collective(own, process_set=among).sum().backward()
                torch.testing.assert_close(own.grad, torch.full_like(own, value))
