"""Gradients of the collectives: those of the sum over the ranks of what each differentiates."""

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import UnsupportedError


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
