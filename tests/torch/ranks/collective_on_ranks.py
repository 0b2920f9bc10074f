"""Values, dtypes and forms of the collectives; inputs differ by rank, and their sums are exact in every dtype."""

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64]
ALL = [*FLOATS, *INTEGERS, torch.bool]


def rows(of_rank, dtype, shape=(4, 3)):
    """What a rank gives: small whole numbers."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 2 * of_rank
    return (numbers % 2).to(dtype) if dtype == torch.bool else numbers.to(dtype)


def everybody(dtype, shape=(4, 3)):
    """By rank, as float64, in which each of the reductions is exact."""
    return torch.stack([rows(rank, dtype, shape) for rank in range(hvd.size())]).double()


REDUCTIONS = {
    hvd.Sum: lambda all_ranks: all_ranks.sum(0),
    hvd.Average: lambda all_ranks: all_ranks.mean(0),
    hvd.Min: lambda all_ranks: all_ranks.min(0).values,
    hvd.Max: lambda all_ranks: all_ranks.max(0).values,
    hvd.Product: lambda all_ranks: all_ranks.prod(0),
}


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.value)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_allreduce(rank, dtype, op):
    exact = REDUCTIONS[op](everybody(dtype))
    if op == hvd.Product and dtype in (torch.uint8, torch.int8):
        exact = exact % 256
    given = rows(rank, dtype)
    expected = exact.to(torch.int64).to(dtype) if dtype in INTEGERS else exact.to(dtype)
    reduced = hvd.allreduce(given, op=op, name=f"{dtype} {op}")
    assert reduced.dtype == dtype and torch.equal(reduced, expected)
    assert torch.equal(given, rows(rank, dtype))
    assert hvd.allreduce_(given, op=op) is given
    assert torch.equal(given, expected)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Min], ids=["or", "and"])
def test_allreduce_of_bool(rank, size, op):
    given = torch.tensor([True, rank == 0, False])
    others = size == 1
    assert hvd.allreduce(given, op=op).tolist() == [True, op is hvd.Sum or others, False]
    with pytest.raises(ConfigError, match="bool, which has no average"):
        hvd.allreduce(given)


def test_averages_and_factors_of_integers_are_cut_off(rank, size):
    given = torch.tensor([-7, 7, 8]) + rank
    total = (torch.tensor([-7, 7, 8]) * size + sum(range(size))).double()
    assert torch.equal(hvd.allreduce(given), (total / size).trunc().long())
    scaled = hvd.allreduce(given, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    halves = sum(((torch.tensor([-7, 7, 8]) + r) * 0.5).trunc() for r in range(size))
    assert torch.equal(scaled, (halves * 3).long())
    mixed = hvd.grouped_allreduce([given, given.float()], name="mixed")
    assert torch.equal(mixed[0], (total / size).trunc().long())
    assert torch.equal(mixed[1], (total / size).float())


def test_factors_and_compression(rank, size):
    given = torch.tensor([1.0, 2.5, -4.0]) + rank
    total = torch.tensor([1.0, 2.5, -4.0]) * size + sum(range(size))
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        reduced = hvd.allreduce(given, op=hvd.Sum, compression=compression, prescale_factor=2.0, postscale_factor=0.25)
        assert torch.equal(reduced, total / 2)

    class Negative:
        def compress(self, tensor):
            return -tensor, "ctx"

        def decompress(self, tensor, ctx):
            assert ctx == "ctx"
            return tensor * 10

    assert torch.equal(hvd.allreduce(given, op=hvd.Sum, compression=Negative()), -10 * total)
    with pytest.raises(ConfigError, match=r"compression must be one of Compression\.none"):
        hvd.allreduce(given, compression="fp32")


def test_adasum_of_equal_and_orthogonal_tensors(rank, size):
    assert torch.equal(hvd.allreduce(torch.ones(4), op=hvd.Adasum), torch.ones(4))
    own = torch.zeros(3)
    own[rank] = rank + 1.0
    assert torch.allclose(hvd.allreduce(own, op=hvd.Adasum)[:size], torch.arange(1.0, size + 1))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_moves_of_rows(rank, size, dtype):
    own = rows(rank, dtype, (rank + 1, 2))
    whole = torch.cat([rows(r, dtype, (r + 1, 2)) for r in range(size)])
    gathered = hvd.allgather(own)
    assert gathered.dtype == dtype and torch.equal(gathered, whole)
    root = size - 1
    assert torch.equal(hvd.broadcast(rows(rank, dtype), root), rows(root, dtype))
    mine = rows(rank, dtype)
    assert hvd.broadcast_(mine, root) is mine and torch.equal(mine, rows(root, dtype))
    sent = rows(rank, dtype, (2 * size, 3))
    expected = torch.cat([rows(r, dtype, (2 * size, 3))[2 * rank : 2 * rank + 2] for r in range(size)])
    assert torch.equal(hvd.alltoall(sent), expected)


def test_alltoall_with_splits(rank, size):
    splits = torch.arange(size, dtype=torch.int32)
    own = torch.arange(sum(range(size))) + 100 * rank
    received, came = hvd.alltoall(own, splits=splits)
    assert came.dtype == torch.int32 and came.tolist() == [rank] * size
    first = sum(range(rank))
    assert received.tolist() == [100 * r + first + i for r in range(size) for i in range(rank)]
    with pytest.raises(ConfigError, match="splits"):
        hvd.alltoall(own, splits=[1.5] * size)


def test_reducescatter(rank, size):
    given = torch.arange(7.0).reshape(7, 1) * (rank + 1)
    parts = torch.tensor_split(torch.arange(7.0).reshape(7, 1) * sum(range(1, size + 1)), size)
    assert torch.equal(hvd.reducescatter(given, op=hvd.Sum), parts[rank])
    assert torch.equal(hvd.reducescatter(given), parts[rank] / size)
    first, second = hvd.grouped_reducescatter([given, given.long()], op=hvd.Sum)
    assert torch.equal(first, parts[rank]) and torch.equal(second, parts[rank].long())
    assert torch.equal(hvd.reducescatter(given.long()), (parts[rank] / size).long())
    with pytest.raises(ConfigError, match="op=Average or op=Sum"):
        hvd.reducescatter(given, op=hvd.Max)


def test_grouped_forms(rank, size):
    tensors = [torch.full((2, i + 1), float(rank + i)) for i in range(3)]
    total = [sum(float(r + i) for r in range(size)) for i in range(3)]
    summed = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
    assert [part.unique().tolist() for part in summed] == [[value] for value in total]
    gathered = hvd.synchronize(hvd.grouped_allgather_async(tensors))
    assert [part.shape for part in gathered] == [(2 * size, i + 1) for i in range(3)]
    assert all(a is b for a, b in zip(hvd.grouped_allreduce_(tensors, op=hvd.Sum), tensors, strict=True))
    assert [part.unique().tolist() for part in tensors] == [[value] for value in total]
    assert hvd.grouped_allreduce([]) == [] == hvd.grouped_allgather([])


def test_shapes_and_strides(rank, size):
    total = float(sum(range(size)))
    assert hvd.allreduce(torch.tensor(float(rank)), op=hvd.Sum).item() == total
    assert hvd.allgather(torch.tensor(rank)).tolist() == list(range(size))
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    given = torch.arange(12.0).reshape(3, 4).t() + rank
    assert torch.equal(hvd.allreduce(given, op=hvd.Sum), torch.arange(12.0).reshape(3, 4).t() * size + total)
    column = torch.zeros(3, 2)
    hvd.allreduce_(column[:, 1].add_(rank), op=hvd.Sum)
    assert column[:, 1].tolist() == [total] * 3 and column[:, 0].tolist() == [0] * 3
    leaf = torch.full((2,), float(rank), requires_grad=True)
    hvd.allreduce_(leaf, op=hvd.Sum)
    assert leaf.tolist() == [total] * 2 and leaf.requires_grad
    images = torch.full((1, 2, 3, 3), float(rank)).to(memory_format=torch.channels_last)
    assert hvd.broadcast_(images, size - 1).unique().tolist() == [size - 1]


def test_sparse_gradients(rank, size):
    table = torch.nn.Embedding(6, 2, sparse=True)
    table(torch.tensor([rank, 5])).sum().backward()
    wait = hvd.sparse_allreduce_async(table.weight.grad, "table", hvd.Average)
    dense = wait().to_dense()
    assert dense[5].tolist() == [1, 1] and torch.allclose(dense[rank], torch.ones(2) / size)
    with pytest.raises(ConfigError, match="sparse_allreduce_async"):
        hvd.allreduce(table.weight.grad)
    with pytest.raises(ConfigError, match="sparse COO"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)


def test_process_sets(rank, size):
    last = hvd.add_process_set([size - 1])
    if last.included():
        assert hvd.allreduce(torch.tensor(7), process_set=last).item() == 7
        assert hvd.allgather(torch.tensor([rank]), process_set=last).tolist() == [rank]
        assert hvd.broadcast_object("mine", rank, process_set=last) == "mine"
    assert hvd.allreduce(torch.tensor(rank), op=hvd.Sum).item() == sum(range(size))
    assert hvd.remove_process_set(last)
    with pytest.raises(ConfigError, match="process_set must be"):
        hvd.allreduce(torch.ones(1), process_set=[0])
