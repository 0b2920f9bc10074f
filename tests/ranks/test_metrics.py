"""`tfdist.metrics` on several ranks: what is counted, on which rank, and while others wait."""

import pytest
import tensorflow as tf

import tfdist

SIZES = pytest.mark.ranks(1, 2, 3, 4)


def costs():
    return tfdist.metrics()["collectives"]


def grown(before, after):
    """What each operation has more of, without the operations that ran not."""
    calls = {name: after[name]["calls"] - before[name]["calls"] for name in after}
    sizes = {name: after[name]["bytes"] - before[name]["bytes"] for name in after}
    return {name: (calls[name], sizes[name]) for name in after if calls[name]}


@SIZES
def test_counts(world):
    rank = tfdist.rank()
    rows = rank + 1  # of what differs by rank
    before = costs()
    tfdist.allreduce(tf.ones([3]), name="a")
    tfdist.grouped_allreduce([tf.ones([2]), tf.ones([5], tf.float64)], name="b")
    tfdist.allreduce(tf.ones([1000]), compression=tfdist.Compression.fp16, name="c")
    tfdist.broadcast(tf.ones([7], tf.int8), 0, name="d")
    tfdist.allgather(tf.ones([rows, 2]), name="e")
    tfdist.reducescatter(tf.ones([8]), name="f")
    tfdist.alltoall(tf.ones([world, 3]), name="g")
    tfdist.barrier(name="h")
    assert grown(before, costs()) == {
        "allreduce": (3, 12 + 8 + 40 + 4000),
        "broadcast": (1, 7),
        "allgather": (1, 8 * rows),
        "reducescatter": (1, 32),
        "alltoall": (1, 12 * world),
        "barrier": (1, 0),
    }


@SIZES
def test_the_parts_are_in_the_whole(world):
    before = costs()["allreduce"]
    for _ in range(5):
        tfdist.grouped_allreduce([tf.ones([100_000]), tf.ones([5])], name="parts")
    after = costs()["allreduce"]
    parts = {name: after[name] - before[name] for name in after if name.endswith("_seconds")}
    assert all(seconds >= 0 for seconds in parts.values())
    assert 0 < sum(parts.values()) <= after["seconds"] - before["seconds"]
    if world > 1:
        assert all(parts[name] > 0 for name in ("wait_seconds", "pack_seconds", "reduce_seconds", "unpack_seconds"))


@SIZES
def test_place(world):
    measured = tfdist.metrics()
    assert (measured["rank"], measured["size"], measured["local_rank"]) == (tfdist.rank(), world, tfdist.local_rank())
