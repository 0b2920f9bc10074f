"""SyncBatchNorm equals one process on the concatenated batch; batches differ in size by rank."""

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError

# Shapes of one sample, and what PyTorch has for them.
KINDS = {
    "1d": ((4,), torch.nn.BatchNorm1d),
    "2d": ((4, 3, 2), torch.nn.BatchNorm2d),
    "3d": ((4, 2, 3, 2), torch.nn.BatchNorm3d),
}


def batches_of(rows, sample, dtype=torch.float64):
    """By rank, far from zero and from each other."""
    torch.manual_seed(5)
    return [(torch.randn(count, *sample) * (rank + 1) + 3 * rank + 2).to(dtype) for rank, count in enumerate(rows)]


def weights_like(tensor):
    return torch.linspace(-1, 2, tensor.numel(), dtype=torch.float64).reshape(tensor.shape).to(tensor.dtype)


def compare(layer, plain, rows, sample, rank, change=lambda batch: batch):
    """Two steps of both; the loss is the weighted sum of all outputs."""
    for layers in (layer, plain):
        if layers.affine:
            with torch.no_grad():
                layers.weight.copy_(torch.linspace(0.5, 2, layers.num_features))
                layers.bias.copy_(torch.linspace(-1, 1, layers.num_features))
    for step in (1, 2):
        batches = [batch * step for batch in batches_of(rows, sample)]
        own = change(batches[rank].clone()).requires_grad_()
        whole = torch.cat(batches).requires_grad_()
        expected = plain(whole)
        (expected * weights_like(expected)).sum().backward()
        result = layer(own)
        (result * weights_like(expected).split(rows)[rank]).sum().backward()
        torch.testing.assert_close(result, expected.split(rows)[rank])
        torch.testing.assert_close(own.grad, whole.grad.split(rows)[rank])
        assert result.stride() == own.stride() or not own.numel()
    torch.testing.assert_close(dict(layer.named_buffers()), dict(plain.named_buffers()))
    for mine, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(hvd.allreduce(mine.grad, op=hvd.Sum), theirs.grad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"momentum": None, "eps": 0.1}, {"affine": False}], ids=str)
def test_training(rank, size, kind, settings):
    sample, plain = KINDS[kind]
    layer = hvd.SyncBatchNorm(4, dtype=torch.float64, **settings)
    compare(layer, plain(4, dtype=torch.float64, **settings), [2 + r for r in range(size)], sample, rank)
    layer.eval()
    own = batches_of([2 + rank], sample)[0]
    plain = plain(4, dtype=torch.float64, **settings).eval()
    plain.load_state_dict(layer.state_dict())
    if rank == 0:  # the others take no part
        torch.testing.assert_close(layer(own), plain(own))


def test_an_empty_batch_counts_as_nothing(rank, size):
    rows = [3, *[0] * (size > 1), *[2] * (size - 2)]
    layer, plain = hvd.SyncBatchNorm(4, dtype=torch.float64), torch.nn.BatchNorm1d(4, dtype=torch.float64)
    compare(layer, plain, rows, (4,), rank)
    if size > 1:
        assert layer(torch.empty(0, 4, dtype=torch.float64)).shape == (0, 4)
        assert layer.num_batches_tracked == 2 and not layer.running_mean.isnan().any()


def test_channels_last_and_without_running_statistics(rank, size):
    rows = [2 + r for r in range(size)]
    settings = {"dtype": torch.float64, "track_running_stats": False}
    layer, plain = hvd.SyncBatchNorm(4, **settings), torch.nn.BatchNorm2d(4, **settings)
    compare(layer, plain, rows, (4, 3, 2), rank, lambda batch: batch.to(memory_format=torch.channels_last))


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16], ids=str)
def test_16_bits(rank, size, parameters):
    """Statistics and sums are in float32, as PyTorch's own."""
    rows = [2 + r for r in range(size)]
    batches = batches_of(rows, (4, 3, 2), torch.bfloat16)
    whole = torch.cat(batches).requires_grad_()
    expected = torch.nn.BatchNorm2d(4)(whole.float())
    expected.square().sum().backward()
    own = batches[rank].clone().requires_grad_()
    result = hvd.SyncBatchNorm(4, dtype=parameters)(own)
    result.float().square().sum().backward()
    assert result.dtype == own.grad.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected.split(rows)[rank], rtol=0.01, atol=0.01)


def test_a_rank_that_has_joined_counts_as_nothing(rank, size):
    rows = [2 + r for r in range(size)]
    layer, plain = hvd.SyncBatchNorm(4, dtype=torch.float64), torch.nn.BatchNorm1d(4, dtype=torch.float64)
    batches = batches_of(rows, (4,))
    if rank or size == 1:
        own = batches[rank].requires_grad_()
        layer(own).square().sum().backward()
        others = torch.cat(batches[1:] if size > 1 else batches).detach().requires_grad_()
        plain(others).square().sum().backward()
        torch.testing.assert_close(own.grad, others.grad.split(rows[1:] if size > 1 else rows)[rank - (size > 1)])
        torch.testing.assert_close(layer.running_var, plain.running_var)
    hvd.join()


def test_what_it_refuses(rank, size):
    with pytest.raises(ConfigError, match=r"SyncBatchNorm\(4\) received a tensor of shape \(2, 3\)"):
        hvd.SyncBatchNorm(4)(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"one value per channel|more than 1 value per channel"):
        hvd.SyncBatchNorm(4)(torch.ones(int(rank == size - 1), 4))
