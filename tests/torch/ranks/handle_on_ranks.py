"""Asynchronous collectives: their order, names, errors, and ranks that have joined."""

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


def test_a_name_that_is_in_use(rank, size, all_again):
    if size == 1:
        return  # the first would have ended before the second comes
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
        with pytest.raises(ConfigError, match="'twice' has the name of another tensor that is currently being"):
            hvd.allreduce_async(torch.ones(2), name="twice")
    hvd.barrier(process_set=all_again)
    if rank > 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
    assert hvd.synchronize(handle).tolist() == [1, 1]


CALLS = {
    "shape": lambda rank: hvd.allreduce(torch.ones(2 + rank), name="x"),
    "dtype": lambda rank: hvd.allreduce(torch.ones(2, dtype=[torch.float32, torch.float64][min(rank, 1)]), name="x"),
    "op": lambda rank: hvd.allreduce(torch.ones(2), op=[hvd.Sum, hvd.Max][min(rank, 1)], name="x"),
    "root": lambda rank: hvd.broadcast(torch.ones(2), rank, name="x"),
    "collective": lambda rank: hvd.allgather(torch.ones(2)) if rank else hvd.allreduce(torch.ones(2)),
    "columns": lambda rank: hvd.allgather(torch.ones(2, 2 + rank), name="x"),
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
    with pytest.raises(ConfigError, match=r"join\(device=0\)"):
        hvd.join(device=0)
