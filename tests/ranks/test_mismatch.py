"""Ranks that disagree: the same error on every rank, within seconds, naming the tensor and each rank's value."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError, MismatchError, NotInitializedError

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
    "weights": (
        lambda odd: tfdist.grouped_allreduce([tf.zeros([3])], weight=2 if odd else None, name="kernel"),
        ["kernel", "weights is no on", "yes on"],
    ),
    "adasum": (
        lambda odd: tfdist.allreduce(tf.zeros([3]), op=tfdist.Adasum if odd else tfdist.Sum, name="kernel"),
        ["kernel", "adasum", "sum"],
    ),
    "average of whole numbers": (
        lambda odd: tfdist.allreduce(tf.zeros([3], tf.int32 if odd else tf.float32), name="kernel"),
        ["kernel", "int32", "average needs a floating dtype"],
    ),
    "order in a group": (
        lambda odd: tfdist.grouped_allreduce([tf.zeros([2]), tf.zeros([3])][:: -1 if odd else 1], name="group"),
        ["group/0", "[2]", "[3]"],
    ),
    "dtype of broadcast": (
        lambda odd: tfdist.broadcast(tf.zeros([3], tf.int8 if odd else tf.bool), 0, name="weights"),
        ["weights", "bool", "int8"],
    ),
    "number of variables": (
        lambda odd: tfdist.broadcast_variables([tf.Variable(0.0)] * (2 if odd else 3), 0, name="weights"),
        ["weights", "number of tensors is 3", "2 on"],
    ),
    "shape of a variable": (
        lambda odd: tfdist.broadcast_variables([tf.Variable(0.0), tf.Variable(tf.zeros([2 if odd else 3]))], 0),
        ["variable 1", "[2]", "[3]"],
    ),
    "dtype of allgather": (
        lambda odd: tfdist.allgather(tf.zeros([2], tf.uint16 if odd else tf.int16), name="rows"),
        ["rows", "uint16", "int16"],
    ),
    "rank of allgather": (
        lambda odd: tfdist.allgather(tf.zeros([2, 1, 1] if odd else [2, 1]), name="rows"),
        ["rows", "[*,1]", "[*,1,1]"],
    ),
    "name of allgather": (
        lambda odd: tfdist.allgather(tf.zeros([2]), name="rows" if odd else "lines"),
        ["rows", "lines"],
    ),
    "number of gathered tensors": (
        lambda odd: tfdist.grouped_allgather([tf.zeros([2])] * (3 if odd else 4), name="group"),
        ["group", "number of tensors is 4", "3 on"],
    ),
    "dtype of alltoall": (
        lambda odd: tfdist.alltoall(tf.zeros([12], tf.int64 if odd else tf.int32), name="rows"),
        ["rows", "int64", "int32"],
    ),
    "rank of alltoall": (
        lambda odd: tfdist.alltoall(tf.zeros([12, 2] if odd else [12]), name="rows"),
        ["rows", "[*,2]", "[*]"],
    ),
    "columns of alltoall": (
        lambda odd: tfdist.alltoall(tf.zeros([12, 2, 3 if odd else 4]), name="rows"),
        ["rows", "[*,2,3]", "[*,2,4]"],
    ),
    "name of alltoall": (
        lambda odd: tfdist.alltoall(tf.zeros([12]), name="rows" if odd else "lines"),
        ["rows", "lines"],
    ),
    "alltoall or allgather": (
        lambda odd: tfdist.alltoall(tf.zeros([12]), name="x") if odd else tfdist.allgather(tf.zeros([12]), name="x"),
        ["alltoall 'x'", "allgather 'x'"],
    ),
    "sum of splits": (
        lambda odd: tfdist.alltoall(tf.zeros([12]), [0] * (tfdist.size() - 1) + [11 if odd else 12], name="rows"),
        ["rows", "do not add up to the 12 rows"],
    ),
    "negative split": (
        lambda odd: tfdist.alltoall(tf.zeros([12]), [-1 if odd else 1, *[0] * (tfdist.size() - 2), 11], name="rows"),
        ["rows", "negative"],
    ),
    "number of splits": (
        lambda odd: tfdist.alltoall(tf.zeros([12]), [12] + [0] * (tfdist.size() - (0 if odd else 1)), name="rows"),
        ["rows", "splits; expected"],
    ),
    "rows that cannot be split equally": (
        lambda odd: tfdist.alltoall(tf.zeros([13 if odd else 12]), name="rows"),
        ["rows", "13 rows and no splits"],
    ),
    "dtype of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5], tf.bfloat16 if odd else tf.float16), name="parts"),
        ["parts", "bfloat16", "float16"],
    ),
    "rank of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5, 1] if odd else [5]), name="parts"),
        ["parts", "[5]", "[5,1]"],
    ),
    "rows of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([6 if odd else 5, 2]), name="parts"),
        ["parts", "[5,2]", "[6,2]"],
    ),
    "columns of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5, 3 if odd else 2]), name="parts"),
        ["parts", "[5,2]", "[5,3]"],
    ),
    "name of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5]), name="parts" if odd else "pieces"),
        ["parts", "pieces"],
    ),
    "reduction of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5]), op=tfdist.Sum if odd else tfdist.Average, name="parts"),
        ["parts", "average", "sum"],
    ),
    "compression of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5]), compression="bf16" if odd else "none", name="parts"),
        ["parts", "bf16", "none"],
    ),
    "factor of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([5]), postscale_factor=4.0 if odd else 5.0, name="parts"),
        ["parts", "postscale is 5", "4 on"],
    ),
    "scalar of reducescatter": (
        lambda odd: tfdist.reducescatter(tf.zeros([] if odd else [5]), name="parts"),
        ["parts", "is a scalar"],
    ),
    "reducescatter or allreduce": (
        lambda odd: tfdist.reducescatter(tf.zeros([5]), name="x") if odd else tfdist.allreduce(tf.zeros([5]), name="x"),
        ["reducescatter 'x'", "allreduce 'x'"],
    ),
    "name of a barrier": (
        lambda odd: tfdist.barrier(name="here" if odd else "there"),
        ["called barrier 'here'", "called barrier 'there'"],
    ),
    "objects": (
        lambda odd: tfdist.broadcast_object(1, 0) if odd else tfdist.allgather_object(1),
        ["broadcast 'broadcast_object/bytes'", "allgather 'allgather_object/bytes'"],
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


WHOLE = [1, 2]
ON_EVERY_RANK = {
    "root out of range": (lambda: tfdist.broadcast(tf.zeros([3]), root_rank=9, name="weights"), "received root 9"),
    "negative root": (lambda: tfdist.broadcast(tf.zeros([3]), root_rank=-1, name="weights"), "received root -1"),
    "root of variables": (lambda: tfdist.broadcast_variables([tf.Variable(0.0)], 9, name="weights"), "received root 9"),
    "root of an object": (lambda: tfdist.broadcast_object(1, 9, name="settings"), "'settings/bytes' received root 9"),
    "average of integers": (lambda: tfdist.allreduce(WHOLE, name="counts"), "counts.*int32.*average"),
    "adasum of integers": (lambda: tfdist.allreduce(WHOLE, op=tfdist.Adasum, name="counts"), "counts.*int32.*adasum"),
    "scale of integers": (
        lambda: tfdist.allreduce(WHOLE, op=tfdist.Sum, prescale_factor=0.5, name="counts"),
        "counts.*prescale",
    ),
    "endless factor": (lambda: tfdist.allreduce([1.0], postscale_factor=float("nan"), name="kernel"), "finite"),
    "weights of a sum": (
        lambda: tfdist.grouped_allreduce([tf.zeros(1)], op=tfdist.Sum, weight=1, name="kernel"),
        "weights for reduction sum",
    ),
    "negative weight": (
        lambda: tfdist.grouped_allreduce([tf.zeros(1)], weight=tf.constant(-1), name="kernel"),
        "'kernel' received the weight -1; expected 0 to 4294967295",
    ),
    "weight that is too large": (
        lambda: tfdist.grouped_allreduce([tf.zeros(1)], weight=tf.constant(2**32, tf.int64), name="kernel"),
        "'kernel' received the weight 4294967296",
    ),
    "splits that do not add up": (
        lambda: tfdist.alltoall(tf.zeros([5]), [1] + [0] * (tfdist.size() - 1), name="rows"),
        "rows.*do not add up to the 5 rows",
    ),
    "negative splits": (
        lambda: tfdist.alltoall(tf.zeros([5]), [-5] + [0] * (tfdist.size() - 1), name="rows"),
        "rows.*negative",
    ),
    "number of splits": (
        lambda: tfdist.alltoall(tf.zeros([5]), [5] + [0] * tfdist.size(), name="rows"),
        "received . splits; expected",
    ),
    "scalar to deal out": (lambda: tfdist.alltoall(1.0, name="rows"), "'rows' received a scalar"),
    "scalar to scatter": (lambda: tfdist.reducescatter(1.0, name="parts"), "'parts' is a scalar"),
    "integers to scatter": (lambda: tfdist.reducescatter(WHOLE, name="parts"), "parts.*int32.*average"),
}


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("case", ON_EVERY_RANK)
def test_bad_argument_on_every_rank(world, case):
    """The same error everywhere, after which the ranks are in step."""
    call, expected = ON_EVERY_RANK[case]
    with pytest.raises(ConfigError, match=expected) as caught:
        call()
    assert len(set(tfdist.allgather_object(str(caught.value), name="texts"))) == 1


@pytest.mark.ranks(2, 3)
def test_bad_root_on_one_rank_hangs_nobody(world):
    text = differs(lambda: tfdist.broadcast(tf.zeros([3]), root_rank=9 if last(world) else 0, name="weights"))
    assert "received root 9" in text


SLICES = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
WHOLE_SLICES = tf.IndexedSlices(tf.ones([1, 2], tf.int32), tf.constant([0]), tf.constant([3, 2]))
COMPLEX = tf.zeros([2], tf.complex64)

BEFORE_ANYTHING_IS_SENT = [
    (lambda: tfdist.allreduce([1.0], op="sum"), "op must be one of tfdist.Average, tfdist.Sum, .* received 'sum'"),
    (lambda: tfdist.grouped_allreduce([[1.0]], op=3), "op must be one of .* received 3"),
    (lambda: tfdist.allreduce([1.0], op=tfdist.Sum, average=True), "not both"),
    (lambda: tfdist.allreduce([1.0], compression="zip"), "none, fp16, bf16"),
    (lambda: tfdist.allreduce([1.0], device_dense="/gpu:0"), "device_dense='/gpu:0' is not supported"),
    (lambda: tfdist.grouped_allreduce([[1.0]], device_sparse="/gpu:0"), "device_sparse='/gpu:0' is not supported"),
    (lambda: tfdist.grouped_allreduce([tf.zeros(1)], tensor_names=["a", "b"]), "2 names for 1 tensors"),
    (lambda: tfdist.grouped_allreduce([[1.0]], weight=-1), "weight must be .* 0 to 4294967295; received -1"),
    (lambda: tfdist.grouped_allreduce([[1.0]], weight=2**32), "weight must be .* received 4294967296"),
    (lambda: tfdist.grouped_allreduce([[1.0]], weight=1.5), "weight must be an integer.* received 1.5"),
    (lambda: tfdist.grouped_allreduce([[1.0]], weight=tf.constant(1.0)), "weight must be an integer"),
    (lambda: tfdist.grouped_allreduce([[1.0], SLICES], weight=1), "weight needs dense tensors; grouped_allreduce/1"),
    (lambda: tfdist.allreduce(SLICES, op=tfdist.Max, name="table"), "table received Max"),
    (lambda: tfdist.grouped_allreduce([[1.0], SLICES], op=tfdist.Adasum), "grouped_allreduce/1 received Adasum"),
    (lambda: tfdist.allreduce(WHOLE_SLICES, name="counts"), "counts is a tf.IndexedSlices of int32"),
    (lambda: tfdist.allreduce(WHOLE_SLICES, op=tfdist.Sum, postscale_factor=2.0), "of int32; Average and factors"),
    (lambda: tfdist.allreduce(COMPLEX, name="wave"), "wave has dtype complex64; collectives support bool, .*Cast it"),
    (lambda: tfdist.grouped_allreduce([[1.0], ["text"]]), "grouped_allreduce/1 has dtype string"),
    (lambda: tfdist.allgather(["text"], name="words"), "words has dtype string"),
    (lambda: tfdist.broadcast(COMPLEX, 0, name="wave"), "wave has dtype complex64"),
    (lambda: tfdist.alltoall(["text"], name="words"), "words has dtype string"),
    (lambda: tfdist.reducescatter(COMPLEX, name="wave"), "wave has dtype complex64"),
    (lambda: tfdist.alltoall([1.0], [1.0]), "received splits of dtype float32; expected integers"),
    (lambda: tfdist.alltoall([1.0], []), "received splits of dtype float32"),
    (lambda: tfdist.reducescatter([1.0], op=tfdist.Max), "op=tfdist.Average or op=tfdist.Sum; received"),
    (lambda: tfdist.grouped_reducescatter([[1.0]], op="average"), "received 'average'"),
    (lambda: tfdist.reducescatter([1.0], compression="zip"), "none, fp16, bf16"),
]


@pytest.mark.parametrize(("call", "text"), BEFORE_ANYTHING_IS_SENT, ids=[text for _, text in BEFORE_ANYTHING_IS_SENT])
def test_bad_argument_is_found_before_anything_is_sent(world, call, text):
    """On one rank only, so that the others would wait if it had sent anything."""
    if last(world):
        with pytest.raises(ConfigError, match=text):
            call()


TAKES_A_SET = {
    "allreduce": lambda where: tfdist.allreduce([1.0], process_set=where),
    "grouped_allreduce": lambda where: tfdist.grouped_allreduce([[1.0]], process_set=where),
    "slices": lambda where: tfdist.allreduce(SLICES, process_set=where),
    "allgather": lambda where: tfdist.allgather([1.0], process_set=where),
    "grouped_allgather": lambda where: tfdist.grouped_allgather([[1.0]], process_set=where),
    "broadcast": lambda where: tfdist.broadcast([1.0], 0, process_set=where),
    "grouped_broadcast": lambda where: tfdist.grouped_broadcast([[1.0]], 0, process_set=where),
    "broadcast_": lambda where: tfdist.broadcast_([tf.Variable(0.0)], 0, process_set=where),
    "broadcast_variables": lambda where: tfdist.broadcast_variables([tf.Variable(0.0)], 0, process_set=where),
    "alltoall": lambda where: tfdist.alltoall([1.0], process_set=where),
    "reducescatter": lambda where: tfdist.reducescatter([1.0], process_set=where),
    "grouped_reducescatter": lambda where: tfdist.grouped_reducescatter([[1.0]], process_set=where),
    "barrier": lambda where: tfdist.barrier(process_set=where),
    "broadcast_object": lambda where: tfdist.broadcast_object(1, process_set=where),
    "allgather_object": lambda where: tfdist.allgather_object(1, process_set=where),
}


@pytest.mark.parametrize("name", TAKES_A_SET)
def test_process_set_that_is_none(world, name):
    if last(world):
        for wrong in (0, None, [0, 1]):
            with pytest.raises(ConfigError, match=r"process_set must be a tfdist\.ProcessSet; received"):
                TAKES_A_SET[name](wrong)
        with pytest.raises(NotInitializedError, match=r"ProcessSet\(\[0, 1\], process_set_id=None\) is not in use"):
            TAKES_A_SET[name](tfdist.ProcessSet([0, 1]))


@pytest.mark.ranks(1, 2)
def test_process_sets_that_may_not_change(world):
    """init was not told process_sets="dynamic"."""
    for call in (
        lambda: tfdist.add_process_set([0]),
        lambda: tfdist.remove_process_set(tfdist.global_process_set),
    ):
        with pytest.raises(ConfigError, match=r"Start with tfdist\.init\(process_sets='dynamic'\)"):
            call()


def test_variable_is_named_by_its_path_on_each_rank(world):
    """Keras numbers layers by what a process made before, so the paths differ; each rank reads its own."""
    for _ in range(tfdist.rank()):
        keras.layers.Dense(1).build((None, 1))
    layer = keras.layers.Dense(4 if last(world) else 3)
    layer.build((None, 2))
    with pytest.raises(MismatchError) as caught:
        tfdist.broadcast_variables(layer.variables, root_rank=0, name="weights")
    assert f"shape of tensor 'variable 0' (here {layer.kernel.path}) is [2,3] on rank" in str(caught.value)
