"""Ranks that disagree: the same error on every rank, within seconds, naming the tensor and each rank's value."""

import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError, MismatchError

LIMIT_SECONDS = 5


def differs(call):
    """Runs a call that must fail on every rank alike; returns the text."""
    start = time.monotonic()
    with pytest.raises(MismatchError) as caught:
        call()
    seconds = time.monotonic() - start
    texts = tfdist.allgather_object((str(caught.value), seconds), name="texts")
    assert len({text for text, _ in texts}) == 1, texts
    assert max(seconds for _, seconds in texts) < LIMIT_SECONDS
    return texts[0][0]


def last(world):
    return tfdist.rank() == world - 1


CASES = {
    "shape": (
        lambda odd: tfdist.allreduce(tf.zeros([3, 5 if odd else 4]), name="kernel"),
        ["kernel", "[3,4]", "[3,5]"],
    ),
    "rank of the tensor": (
        lambda odd: tfdist.allreduce(tf.zeros([4] if odd else [4, 1]), name="kernel"),
        ["kernel", "[4,1]", "[4]"],
    ),
    "dtype": (
        lambda odd: tfdist.allreduce(tf.zeros([3], tf.float64 if odd else tf.float32), name="kernel"),
        ["kernel", "float32", "float64"],
    ),
    "name": (
        lambda odd: tfdist.allreduce(tf.zeros([3]), name="bias" if odd else "kernel"),
        ["kernel", "bias"],
    ),
    "reduction": (
        lambda odd: tfdist.allreduce(tf.zeros([3]), op=tfdist.Max if odd else tfdist.Sum, name="kernel"),
        ["kernel", "max", "sum"],
    ),
    "compression": (
        lambda odd: tfdist.allreduce(tf.zeros([3]), compression="fp16" if odd else "none", name="kernel"),
        ["kernel", "fp16", "none"],
    ),
    "factor": (
        lambda odd: tfdist.allreduce(tf.zeros([3]), prescale_factor=3.0 if odd else 2.0, name="kernel"),
        ["kernel", "2", "3"],
    ),
    "number of tensors": (
        lambda odd: tfdist.grouped_allreduce([tf.zeros([3])] * (1 if odd else 2), name="group"),
        ["group"],
    ),
    "root": (
        lambda odd: tfdist.broadcast(tf.zeros([3]), root_rank=1 if odd else 0, name="weights"),
        ["weights", "root"],
    ),
    "broadcast shape": (
        lambda odd: tfdist.broadcast(tf.zeros([2 if odd else 3]), root_rank=0, name="weights"),
        ["weights", "[2]", "[3]"],
    ),
    "columns of allgather": (
        lambda odd: tfdist.allgather(tf.zeros([2, 7 if odd else 6]), name="rows"),
        ["rows", "6", "7"],
    ),
    "operation": (
        lambda odd: tfdist.barrier(name="rest") if odd else tfdist.allreduce(tf.zeros([3]), name="kernel"),
        ["allreduce", "kernel", "barrier", "rest"],
    ),
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("case", CASES)
def test_difference_is_named_on_every_rank(world, case):
    call, expected = CASES[case]
    text = differs(lambda: call(last(world)))
    for part in [*expected, f"{world - 1}"]:
        assert part in text
    assert "Every rank must" in text or "on every rank" in text, "the message says no next step"
    assert float(tfdist.allreduce(1.0, op=tfdist.Sum, name="after")) == world, "the ranks are not in step again"


@pytest.mark.ranks(2, 3)
def test_in_a_function_it_is_failed_precondition(world):
    @tf.function
    def reduce(x):
        return tfdist.allreduce(x, name="kernel")

    with pytest.raises(tf.errors.FailedPreconditionError, match="kernel"):
        reduce(tf.zeros([3 + last(world)]))


@pytest.mark.ranks(2, 3)
def test_in_fit_the_gradient_is_named(world):
    """The last rank has a wider model."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2 + last(world)), keras.layers.Dense(1)])
    model.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD()), loss="mse")
    with pytest.raises(tf.errors.FailedPreconditionError, match="kernel"):
        model.fit(np.ones((4, 4)), np.ones((4, 1)), verbose=0)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tfdist.broadcast(tf.zeros([3]), root_rank=9, name="weights"), "9"),
        (lambda: tfdist.allreduce(tf.constant([1, 2]), op=tfdist.Average, name="counts"), "counts"),
        (lambda: tfdist.allreduce(tf.constant([1, 2]), op=tfdist.Sum, prescale_factor=0.5, name="counts"), "counts"),
    ],
    ids=["root out of range", "average of integers", "scale of integers"],
)
def test_bad_argument_on_every_rank(world, call, text):
    with pytest.raises((ConfigError, MismatchError), match=text):
        call()


@pytest.mark.ranks(2, 3)
def test_bad_argument_on_one_rank_hangs_nobody(world):
    text = differs(lambda: tfdist.broadcast(tf.zeros([3]), root_rank=9 if last(world) else 0, name="weights"))
    assert "9" in text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tfdist.allreduce([1.0], op="sum"), "op must be one of"),
        (lambda: tfdist.allreduce([1.0], op=tfdist.Sum, average=True), "not both"),
        (lambda: tfdist.allreduce([1.0], compression="zip"), "none, fp16, bf16"),
        (lambda: tfdist.allreduce([1.0], device_dense="/gpu:0"), "device_dense"),
        (lambda: tfdist.grouped_allreduce([tf.zeros(1)], tensor_names=["a", "b"]), "2 names for 1 tensors"),
    ],
)
def test_bad_argument_is_found_before_anything_is_sent(world, call, text):
    with pytest.raises(ConfigError, match=text):
        call()
