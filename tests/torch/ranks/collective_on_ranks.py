"""Values, dtypes and forms of the collectives; inputs differ by rank, and their sums are exact in every dtype."""

import itertools
import math

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64]
ALL = [*FLOATS, *INTEGERS, torch.bool]
SHAPES = [(5,), (4, 3), (2, 3, 4)]
# What follows the number of rows in a shape.
ROWS = [(), (2,), (2, 3)]


def rows(of_rank, dtype, shape=(4, 3)):
    """What a rank gives: small whole numbers."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 2 * of_rank
    return (numbers % 2).to(dtype) if dtype == torch.bool else numbers.to(dtype)


def everybody(dtype, shape=(4, 3), ranks=None):
    """By rank, as float64, in which each of the reductions is exact."""
    return torch.stack([rows(rank, dtype, shape) for rank in ranks or range(hvd.size())]).double()


REDUCTIONS = {
    hvd.Sum: lambda all_ranks: all_ranks.sum(0),
    hvd.Average: lambda all_ranks: all_ranks.mean(0),
    hvd.Min: lambda all_ranks: all_ranks.min(0).values,
    hvd.Max: lambda all_ranks: all_ranks.max(0).values,
    hvd.Product: lambda all_ranks: all_ranks.prod(0),
}


def reduced(dtype, op, shape=(4, 3), ranks=None):
    """Integers are cut off, and wrap around."""
    exact = REDUCTIONS[op](everybody(dtype, shape, ranks))
    if dtype in INTEGERS:
        exact = exact.long() % 256 if dtype in (torch.uint8, torch.int8) else exact.long()
    return exact.to(dtype)


def same(ours, expected):
    """Of lists: dtypes, shapes and values."""
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.value)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_allreduce(rank, dtype, op):
    given = [rows(rank, dtype, shape) for shape in SHAPES]
    expected = [reduced(dtype, op, shape) for shape in SHAPES]
    assert same([hvd.allreduce(each, op=op, name=f"{dtype} {op}") for each in given], expected)
    assert same(hvd.grouped_allreduce(given, op=op), expected)
    assert same(given, [rows(rank, dtype, shape) for shape in SHAPES])
    assert hvd.allreduce_(given[0], op=op) is given[0]
    hvd.grouped_allreduce_(given[1:], op=op)
    assert same(given, expected)


@pytest.mark.parametrize("average", [True, False, None])
def test_average_instead_of_op(rank, size, average):
    total = sum(range(1, size + 1))
    own, expected = torch.tensor([rank + 1.0]), [total if average is False else total / size]
    assert hvd.allreduce(own, average).tolist() == expected
    assert hvd.grouped_allreduce([own], average)[0].tolist() == expected
    assert hvd.synchronize(hvd.allreduce_async(own, average)).tolist() == expected
    assert hvd.synchronize(hvd.grouped_allreduce_async([own], average))[0].tolist() == expected
    assert hvd.allreduce_(own.clone(), average).tolist() == expected
    assert hvd.allreduce_(own, None, "by place", hvd.Sum).tolist() == [total]


@pytest.mark.parametrize(("before", "after"), [(0.5, 1.0), (0.37, 1.0), (1.0, 0.25), (1.0, 1.7)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_factors(rank, size, dtype, before, after):
    def scaled(tensor, factor):
        return (tensor * factor).trunc() if dtype in INTEGERS else tensor * factor

    shape = (2 * size, 3)
    whole = scaled(scaled(everybody(dtype, shape), before).sum(0), after)
    own, given = slice(2 * rank, 2 * rank + 2), rows(rank, dtype, shape)
    options = {"op": hvd.Sum, "prescale_factor": before, "postscale_factor": after}
    rounding = 0 if dtype in INTEGERS else 4 * torch.finfo(dtype).eps
    for found, expected in (
        (hvd.allreduce(given, **options), whole),
        (hvd.grouped_allreduce([given, given], **options)[1], whole),
        (hvd.reducescatter(given, **options), whole[own]),
        (hvd.grouped_reducescatter([given, given], **options)[1], whole[own]),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=0)


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


@pytest.mark.parametrize("factors", [(1.0, 1.0), (2.0, 0.5)], ids=str)
@pytest.mark.parametrize("dtype", INTEGERS[:-1], ids=str)
def test_averages_of_integers_whose_sum_does_not_fit(rank, size, dtype, factors):
    """In every form. What is near the ends of the dtype stays there."""
    info = torch.iinfo(dtype)
    largest, smallest = ([end + step * r for r in range(size)] for end, step in ((info.max, -1), (info.min, 1)))
    total = torch.tensor([sum(largest), sum(smallest)])
    scaled = total.double() * factors[0] * (factors[1] / size) if factors[1] != 1 else total.double() / size
    each = scaled.trunc().to(dtype)
    given, average = (torch.tensor([largest[rank], smallest[rank]] * size).to(dtype), each.repeat(size))
    options = {"prescale_factor": factors[0], "postscale_factor": factors[1]}
    assert same([hvd.allreduce(given, **options)], [average])
    assert same(hvd.grouped_allreduce([given, given.float()], **options)[:1], [average])
    assert same([hvd.synchronize(hvd.allreduce_async(given, **options))], [average])
    assert same(hvd.synchronize(hvd.grouped_allreduce_async([given, given], **options)), [average] * 2)
    assert same([hvd.reducescatter(given, **options)], [each])
    assert same(hvd.grouped_reducescatter([given, given], **options), [each] * 2)
    assert same([hvd.synchronize(hvd.reducescatter_async(given, **options))], [each])
    assert same(hvd.synchronize(hvd.grouped_reducescatter_async([given], **options)), [each])
    columns = given.repeat(2, 1).t()
    assert same([hvd.allreduce_(columns[:, 1], **options), columns[:, 0]], [average, given])
    assert hvd.grouped_allreduce_([given], **options)[0] is given and same([given], [average])


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


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_adasum_of_equal_and_orthogonal_tensors(rank, size, dtype):
    assert same([hvd.allreduce(torch.ones(4, dtype=dtype), op=hvd.Adasum)], [torch.ones(4, dtype=dtype)])
    for count in (size, 2 * size + 1, 1000):  # each rank has elements of its own
        whole = rows(0, dtype, (count,))
        own = torch.where(torch.arange(count) % size == rank, whole, 0)
        assert same([hvd.synchronize(hvd.allreduce_async(own, op=hvd.Adasum))], [whole])


SCALES = {
    "alike": lambda info, place: 1.0 + place,
    "opposed": lambda info, place: -2.0 if place == 0 else place,
    "tiny": lambda info, place: info.tiny * (1 + place),
    "far apart": lambda info, place: math.sqrt(info.max) if place else math.sqrt(info.tiny),
}


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_adasum_of_parallel_tensors(rank, size, dtype, scales):
    """The average of two, and then that of it and the third. Products are in float64, where those of these fit."""
    torch.manual_seed(1)
    info, common = torch.finfo(dtype), torch.randn(1024, dtype=torch.float64)
    first, *others = [(common * SCALES[scales](info, place)).to(dtype) for place in range(size)]
    expected = first.double()
    for other in others:
        expected = (expected + other.double()) / 2
    found = hvd.allreduce_([first, *others][rank].clone(), op=hvd.Adasum)
    assert (found.double() - expected).abs().max() <= 4 * info.eps * expected.abs().max()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_allgather(rank, size, dtype):
    own = [rows(rank, dtype, (rank + 1, *row)) for row in ROWS]
    whole = [torch.cat([rows(r, dtype, (r + 1, *row)) for r in range(size)]) for row in ROWS]
    assert same(map(hvd.allgather, own), whole)
    assert same(hvd.grouped_allgather(own), whole)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_broadcast(rank, size, dtype):
    for root, shape in itertools.product(range(size), SHAPES):
        own, expected = rows(rank, dtype, shape), rows(root, dtype, shape)
        assert same([hvd.broadcast(own, root)], [expected])
        assert same([own], [rows(rank, dtype, shape)])
        assert hvd.broadcast_(own, root) is own
        assert same([own], [expected])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_alltoall(rank, size, dtype):
    for row in ROWS:
        sent = [rows(r, dtype, ((r + 1) * size, *row)) for r in range(size)]
        expected = torch.cat([sent[r][(r + 1) * rank : (r + 1) * (rank + 1)] for r in range(size)])
        assert same([hvd.alltoall(sent[rank])], [expected])
        received, came = hvd.alltoall(sent[rank], torch.full((size,), rank + 1, dtype=torch.int32))
        assert same([received], [expected]) and came.tolist() == list(range(1, size + 1))


def test_alltoall_with_splits(rank, size):
    splits = torch.arange(size, dtype=torch.int32)
    own = torch.arange(sum(range(size))) + 100 * rank
    received, came = hvd.alltoall(own, splits=splits)
    assert came.dtype == torch.int32 and came.tolist() == [rank] * size
    first = sum(range(rank))
    assert received.tolist() == [100 * r + first + i for r in range(size) for i in range(rank)]
    for splits in ([1.5] * size, torch.ones(size)):
        with pytest.raises(ConfigError, match="splits"):
            hvd.alltoall(own, splits=splits)
    if size > 1:
        with pytest.raises(ConfigError, match="splits"):
            hvd.alltoall(torch.ones(size + 1))


def test_reducescatter(rank, size):
    given = torch.arange(7.0).reshape(7, 1) * (rank + 1)
    parts = torch.tensor_split(torch.arange(7.0).reshape(7, 1) * sum(range(1, size + 1)), size)
    assert torch.equal(hvd.reducescatter(given, op=hvd.Sum), parts[rank])
    assert torch.equal(hvd.reducescatter(given), parts[rank] / size)
    first, second = hvd.grouped_reducescatter([given, given.long()], op=hvd.Sum)
    assert torch.equal(first, parts[rank]) and torch.equal(second, parts[rank].long())
    assert torch.equal(hvd.reducescatter(given.long()), (parts[rank] / size).long())
    for op in (hvd.Max, hvd.Adasum):
        with pytest.raises(ConfigError, match="op=Average or op=Sum"):
            hvd.reducescatter(given, op=op)
    for collective in (hvd.reducescatter, lambda scalar: hvd.grouped_reducescatter([given, scalar])):
        with pytest.raises(ConfigError, match="scalar"):
            collective(torch.tensor(1.0))


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=lambda op: op.value)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_reducescatter_of_every_dtype(rank, size, dtype, op):
    shapes = [(7,), (4 * size,), (4 * size, 3), (4 * size, 2, 3)]
    own = [rows(rank, dtype, shape) for shape in shapes]
    expected = [torch.tensor_split(reduced(dtype, op, shape), size)[rank] for shape in shapes]
    assert same([hvd.reducescatter(each, op=op) for each in own], expected)
    assert same(hvd.grouped_reducescatter(own, op=op), expected)


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


IN_PLACE = {
    "allreduce_": hvd.allreduce_,
    "grouped_allreduce_": lambda each: hvd.grouped_allreduce_([torch.ones(2), each]),
    "allreduce_async_": hvd.allreduce_async_,
    "grouped_allreduce_async_": lambda each: hvd.grouped_allreduce_async_([torch.ones(2), each]),
    "broadcast_": lambda each: hvd.broadcast_(each, 0),
    "broadcast_async_": lambda each: hvd.broadcast_async_(each, 0),
    "broadcast_parameters": lambda each: hvd.broadcast_parameters({"a": torch.ones(2), "scale": each}, 0),
}


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_is_expanded_cannot_be_overwritten(size, what):
    for each in (torch.ones(1).expand(4), torch.ones(3, 1).expand(3, 2)):
        name = r"scale" if what == "broadcast_parameters" else r"noname\.\d+(/1)?"
        with pytest.raises(ConfigError, match=rf"^{name} cannot be overwritten: it is expanded.* x\.contiguous\(\)"):
            IN_PLACE[what](each)
        assert torch.equal(each, torch.ones(each.shape))
        for fitting in (
            each.contiguous(),
            each[:1, ...].contiguous(),
            torch.ones(1, 1).expand(1, 1),
            torch.ones(0, 1).expand(0, 3),
        ):
            IN_PLACE[what](fitting) if "async" not in what else hvd.synchronize(IN_PLACE[what](fitting))
    assert hvd.allreduce(torch.ones(1).expand(4), op=hvd.Sum).tolist() == [size] * 4


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


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=lambda op: op.value)
def test_many_sparse_tensors(rank, size, own_set, op):
    """Their rows are those of the dense sum; one has none on rank 0."""
    torch.manual_seed(rank)
    given = [torch.randint(-3, 4, (count, 3)) * (torch.rand(count, 1) < 0.3) for count in (17, 32, 1, 12)]
    given[2] *= min(rank, 1)
    for among in (hvd.global_process_set, own_set):
        options = {"op": op, "process_set": among}
        expected = [hvd.allreduce(each.float(), **options) for each in given]
        for dimensions in (1, 2):
            sparse = [each.float().to_sparse(dimensions) for each in given]
            waits = [hvd.sparse_allreduce_async(each, str(index), **options) for index, each in enumerate(sparse)]
            for wait, dense in zip(waits, expected, strict=True):
                torch.testing.assert_close(wait().to_dense(), dense)


@pytest.mark.parametrize(("compression", "wire"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("none", None)])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_compression_without_a_collective(dtype, compression, wire):
    given, cast = rows(1, dtype), getattr(hvd.Compression, compression)
    sent, context = cast.compress(given)
    assert sent.dtype == (wire if wire and dtype in (torch.float32, torch.float64) else dtype)
    assert same([cast.decompress(sent, context)], [given])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_reductions_in_a_set(rank, own_set, dtype):
    ranks, place, count = own_set.ranks, own_set.rank(), own_set.size()
    shapes = [(2 * count, *row) for row in ROWS]
    own = [rows(rank, dtype, shape) for shape in shapes]
    summed = [reduced(dtype, hvd.Sum, shape, ranks) for shape in shapes]
    options = {"op": hvd.Sum, "process_set": own_set}
    assert same([hvd.allreduce(each, **options) for each in own], summed)
    assert same(hvd.grouped_allreduce(own, **options), summed)
    mine = [whole[2 * place : 2 * place + 2] for whole in summed]
    assert same([hvd.reducescatter(each, **options) for each in own], mine)
    assert same(hvd.grouped_reducescatter(own, **options), mine)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_moves_in_a_set(rank, own_set, dtype):
    ranks, place, count = own_set.ranks, own_set.rank(), own_set.size()
    given = [rows(rank, dtype, (rank + 1, *row)) for row in ROWS]
    whole = [torch.cat([rows(r, dtype, (r + 1, *row)) for r in ranks]) for row in ROWS]
    assert same([hvd.allgather(each, process_set=own_set) for each in given], whole)
    assert same(hvd.grouped_allgather(given, process_set=own_set), whole)
    for root, shape in itertools.product(ranks, SHAPES):
        each, expected = rows(rank, dtype, shape), rows(root, dtype, shape)
        assert same([hvd.broadcast(each, root, process_set=own_set)], [expected])
        assert same([hvd.broadcast_(each.clone(), root, process_set=own_set)], [expected])
    for row in ROWS:
        sent = {r: rows(r, dtype, ((r + 1) * count, *row)) for r in ranks}
        splits = torch.full((count,), rank + 1, dtype=torch.int32)
        received, came = hvd.alltoall(sent[rank], splits, process_set=own_set)
        assert same([received], [torch.cat([sent[r][(r + 1) * place : (r + 1) * (place + 1)] for r in ranks])])
        assert came.tolist() == [r + 1 for r in ranks]


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


def test_a_view_that_negates_what_is_in_its_memory(rank, size):
    def own():
        """Of one element, so that it is contiguous."""
        return torch.complex(torch.zeros(1), torch.full((1,), -1.0 - rank)).conj().imag

    total = size * (size + 1) / 2
    assert own().is_neg() and own().is_contiguous()
    assert hvd.allreduce(own(), op=hvd.Sum).tolist() == [total]
    assert hvd.allreduce_(own(), op=hvd.Sum).tolist() == [total]
    assert hvd.broadcast_(own(), size - 1).tolist() == [size]
    assert hvd.allgather(own()).tolist() == list(range(1, size + 1))
    to_the_first = torch.tensor([1] + [0] * (size - 1))
    assert hvd.alltoall(own(), to_the_first)[0].tolist() == (list(range(1, size + 1)) if rank == 0 else [])
    assert hvd.reducescatter(own(), op=hvd.Sum).tolist() == ([total] if rank == 0 else [])
