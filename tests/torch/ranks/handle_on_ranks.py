"""Asynchronous collectives: their order, names, errors, and ranks that have joined."""

import itertools
import re

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError, MismatchError


def test_handles_in_another_order_on_each_rank(rank, size):
    names = [f"t{index}" for index in range(12)]
    order = names[rank * 5 % 12 :] + names[: rank * 5 % 12]
    for _ in range(5):
        given = {name: torch.full((100,), float(rank + index)) for index, name in enumerate(names)}
        handles = {name: hvd.allreduce_async_(given[name], op=hvd.Sum, name=name) for name in order}
        for name in reversed(order):
            assert hvd.synchronize(handles[name]) is given[name]
        for index, name in enumerate(names):
            assert given[name].unique().tolist() == [sum(r + index for r in range(size))]


def test_every_async_form(rank, size):
    own = torch.full((size, 2), float(rank))
    total = float(sum(range(size)))
    handles = [
        hvd.allreduce_async(own, op=hvd.Sum),
        hvd.grouped_allreduce_async([own, own], op=hvd.Sum),
        hvd.allgather_async(own),
        hvd.broadcast_async(own, 0),
        hvd.alltoall_async(own),
        hvd.reducescatter_async(own, op=hvd.Sum),
        hvd.grouped_reducescatter_async([own], op=hvd.Sum),
        hvd.broadcast_async_(own.clone(), size - 1),
        hvd.grouped_allreduce_async_([own.clone()], op=hvd.Sum),
    ]
    first, group, gathered, sent, exchanged, scattered, parts, last, (here,) = map(hvd.synchronize, handles)
    assert [t.unique().tolist() for t in (first, *group, scattered, *parts, here)] == [[total]] * 6
    assert gathered.shape == (size * size, 2) and exchanged[:, 0].tolist() == [float(r) for r in range(size)]
    assert sent.unique().tolist() == [0] and last.unique().tolist() == [size - 1]
    assert hvd.synchronize(handles[0]) is None


@pytest.fixture
def all_again(size):
    """The same ranks as a set of their own, in which they can meet while the others' handles wait."""
    again = hvd.add_process_set(list(range(size)))
    yield again
    hvd.barrier()
    hvd.remove_process_set(again)


def test_poll(rank, size, all_again, wait_until):
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="polled")
        assert size == 1 or not hvd.poll(handle)
    hvd.barrier(process_set=all_again)
    if rank > 0:
        handle = hvd.allreduce_async(torch.ones(3), name="polled")
    wait_until(lambda: hvd.poll(handle), what="the end of the collective")
    assert hvd.synchronize(handle).tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="no collective of number"):
        hvd.poll(handle)


NAMED = {
    "allreduce": lambda name: hvd.allreduce_async(torch.ones(6), name=name),
    "allgather": lambda name: hvd.allgather_async(torch.ones(6), name=name),
    "broadcast": lambda name: hvd.broadcast_async(torch.ones(6), 0, name=name),
    "alltoall": lambda name: hvd.alltoall_async(torch.ones(6), name=name),
    "reducescatter": lambda name: hvd.reducescatter_async(torch.ones(6), name=name),
}


@pytest.mark.parametrize("what", NAMED)
def test_a_name_that_is_in_use(rank, size, all_again, what):
    if size == 1:
        return  # the first would have ended before the second comes
    if rank == 0:
        handle = NAMED[what]("twice")
        with pytest.raises(ConfigError, match="'twice' has the name of another tensor that is currently being"):
            NAMED[what]("twice")
    hvd.barrier(process_set=all_again)
    if rank > 0:
        handle = NAMED[what]("twice")
    assert hvd.synchronize(handle).unique().tolist() == [1]


# What starts, and what comes of the tensors of all ranks.
STARTS = {
    "allreduce": (lambda own: hvd.allreduce_async(own, op=hvd.Sum), lambda given, _: sum(given)),
    "allgather": (hvd.allgather_async, lambda given, _: torch.cat(given)),
    "broadcast": (lambda own: hvd.broadcast_async(own, 0), lambda given, _: given[0]),
    "alltoall": (hvd.alltoall_async, lambda given, rank: torch.cat([each.chunk(len(given))[rank] for each in given])),
    "reducescatter": (
        lambda own: hvd.reducescatter_async(own, op=hvd.Sum),
        lambda given, rank: sum(given).chunk(len(given))[rank],
    ),
}


@pytest.mark.parametrize("what", STARTS)
def test_all_dtypes_are_under_way_at_once(rank, size, what):
    start, result = STARTS[what]
    dtypes = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    dtypes += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    handles = {}
    for dtype, row in itertools.product(dtypes, ((), (3,), (3, 2))):
        numbers = torch.arange(torch.Size((2 * size, *row)).numel()).reshape(2 * size, *row)
        given = [(numbers + r).to(dtype) for r in range(size)]
        handles[start(given[rank])] = dtype, result(given, rank)
    for handle, (dtype, expected) in handles.items():
        found = hvd.synchronize(handle)
        assert found.dtype == dtype and torch.equal(found, expected)


def test_a_barrier_among_open_handles(rank, size):
    own = torch.full((3,), float(rank))
    handles = hvd.broadcast_async(own, 0), hvd.allgather_async(own), hvd.allreduce_async(own, op=hvd.Sum)
    hvd.barrier()
    sent, gathered, summed = map(hvd.synchronize, handles)
    assert sent.tolist() == [0] * 3 and summed.tolist() == [sum(range(size))] * 3
    assert gathered.tolist() == [r for r in range(size) for _ in range(3)]


def differs(rank, of_first, of_others):
    return of_others if rank else of_first


CALLS = {
    "shape": lambda rank: hvd.allreduce(torch.ones(2 + rank), name="x"),
    "dimensions": lambda rank: hvd.allreduce(torch.ones(differs(rank, (2, 6), (2, 3, 2))), name="x"),
    "dtype": lambda rank: hvd.allreduce(torch.ones(2, dtype=differs(rank, torch.int32, torch.float32)), name="x"),
    "dtype of an average": lambda rank: hvd.allreduce(torch.ones(2, dtype=differs(rank, torch.int32, torch.uint8))),
    "dtype of a wide average": lambda rank: hvd.allreduce(torch.ones(2, dtype=differs(rank, torch.int64, torch.int8))),
    "dtype of averaged parts": lambda rank: hvd.reducescatter(
        torch.ones(6, dtype=differs(rank, torch.int32, torch.int16))
    ),
    "op": lambda rank: hvd.allreduce(torch.ones(2), op=differs(rank, hvd.Sum, hvd.Max), name="x"),
    "root": lambda rank: hvd.broadcast(torch.ones(2), rank, name="x"),
    "collective": lambda rank: hvd.allgather(torch.ones(2)) if rank else hvd.allreduce(torch.ones(2)),
    "columns": lambda rank: hvd.allgather(torch.ones(2, 2 + rank), name="x"),
    "dtype of rows": lambda rank: hvd.allgather(torch.ones(2, dtype=differs(rank, torch.int32, torch.float32))),
    "shape of the root": lambda rank: hvd.broadcast(torch.ones(2, 2 + rank), 0, name="x"),
    "dtype of the root": lambda rank: hvd.broadcast(torch.ones(2, dtype=differs(rank, torch.int32, torch.float32)), 0),
    "columns sent": lambda rank: hvd.alltoall(torch.ones(6, 2 + rank), name="x"),
    "dtype sent": lambda rank: hvd.alltoall(torch.ones(6, dtype=differs(rank, torch.int32, torch.float32))),
    "shape of parts": lambda rank: hvd.reducescatter(torch.ones(6 + rank, 2), name="x"),
    "dimensions of parts": lambda rank: hvd.reducescatter(torch.ones(differs(rank, (6, 6), (6, 3, 2))), name="x"),
    "dtype of parts": lambda rank: hvd.reducescatter(torch.ones(6, dtype=differs(rank, torch.int32, torch.float64))),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_mismatch_is_an_error_on_every_rank(rank, size, what):
    if size == 1:
        CALLS[what](rank)
        return
    with pytest.raises(MismatchError) as caught:
        CALLS[what](rank)
    texts = hvd.allgather_object(str(caught.value))
    assert len(set(texts)) == 1 and re.search("ranks? 0.*ranks? 1", texts[0])


def test_wrong_arguments_of_one_rank_are_an_error_on_all(rank, size):
    splits = [2, *[0] * (size - 1)] if rank == size - 1 else [3, *[0] * (size - 1)]
    with pytest.raises((ConfigError, MismatchError), match="splits"):
        hvd.alltoall(torch.ones(3), splits=splits, name="rows")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.ones(2, dtype=torch.complex64), "has dtype complex64; collectives support bool, uint8"),
        (torch.ones(2, device="meta"), "device meta"),
        ([1.0, 2.0], "is a list"),
    ],
    ids=["dtype", "device", "type"],
)
def test_tensors_that_cannot_travel(given, expected):
    with pytest.raises(ConfigError, match=expected):
        hvd.allreduce(given, name="x")
    with pytest.raises(ConfigError, match="op or average, not both"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)


def test_join(rank, size):
    for _ in range(rank + 1):  # unequal numbers, without names
        summed = hvd.allreduce(torch.ones(2), op=hvd.Sum)
        gathered = hvd.allgather(torch.tensor([rank]))
    assert hvd.join() == size - 1
    assert summed.tolist() == [size - rank] * 2 and gathered.tolist() == list(range(rank, size))
    assert hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum).item() == sum(range(size))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16, torch.float32, torch.float64], ids=str)
def test_each_rank_joins_first(rank, size, dtype):
    """It gives zeros to an average, which is still that over all ranks."""
    total = torch.tensor([-7, 7, 8]) * (size - 1)
    average = (total / size).trunc() if not dtype.is_floating_point else total.double() / size
    for first in range(size):
        if rank != first:
            given = torch.tensor([-7, 7, 8], dtype=dtype)
            handles = [hvd.allreduce_async(each, name=name) for name, each in (("a", given), ("b", given.repeat(9)))]
            one, many = map(hvd.synchronize, handles)
            assert torch.equal(one, average.to(dtype)) and torch.equal(many, average.to(dtype).repeat(9))
        last = hvd.join(device=hvd.local_rank())
        assert hvd.allgather_object(last) == [last] * size
        assert last != first or size == 1


@pytest.mark.parametrize("what", ["broadcast", "alltoall", "reducescatter"])
def test_what_a_rank_that_has_joined_cannot_take_part_in(rank, size, what):
    for first in range(size if size > 1 else 0):
        with pytest.raises(MismatchError, match=f"{what} 'x'.* rank {first} had joined"):
            hvd.synchronize(NAMED[what]("x")) if rank != first else hvd.join()
        assert hvd.join() == size - 1
