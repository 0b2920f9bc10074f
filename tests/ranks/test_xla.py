"""Collectives inside functions that XLA compiles: the results, gradients and errors are those of eager mode.

What eager mode returns is tested elsewhere, against exact sums and differences; here it is the reference, bit for bit.
"""

import functools
import os
import re
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.graph import xla
from tfdist.testing import expected_sum, summable
from tfdist.testing.parity import assert_equal
from tfdist.world import process_sets

if xla.obstacle():
    pytest.skip(xla.obstacle(), allow_module_level=True)

SIZES = pytest.mark.ranks(1, 2, 3, 4)
DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
FLOATING = DTYPES[-4:]
LIMIT_SECONDS = 20
ON_GPU = bool(os.environ.get("TFDIST_TEST_GPU"))


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def numbers(shape, dtype="float32"):
    """Away from zero, and nowhere near those of another rank."""
    generator = np.random.default_rng(17 + tfdist.rank())
    return tf.constant(generator.uniform(0.5, 1.5, shape) * generator.choice([-1, 1], shape), dtype)


@SIZES
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_sum_and_rows_of_every_dtype(world, dtype):
    mine = tf.constant(summable((7, 3), dtype, tfdist.rank()))

    @compiled
    def step(x):
        return (
            tfdist.allreduce(x, op=tfdist.Sum, name="sum"),
            tfdist.allreduce(x, op=tfdist.Max, name="most"),
            tfdist.allgather(x, name="rows"),
            tfdist.broadcast(x, world - 1, name="last"),
            tfdist.reducescatter(x, op=tfdist.Sum, name="part"),
        )

    total, most, rows, last, part = step(mine)
    inputs = [summable((7, 3), dtype, rank) for rank in range(world)]
    whole = expected_sum((7, 3), dtype, world)
    assert_equal(total, whole)
    assert_equal(most, np.max(inputs, axis=0))
    assert_equal(rows, np.concatenate(inputs))
    assert_equal(last, inputs[-1])
    assert_equal(part, np.array_split(whole, world)[tfdist.rank()])


FACTORS = {"prescale_factor": -0.5, "postscale_factor": 3.0}

# What a function does with a [4, 3] tensor.
CASES = {
    "sum": lambda x: tfdist.allreduce(x, op=tfdist.Sum, name="x", **FACTORS),
    "average": lambda x: tfdist.allreduce(x, name="x"),
    "min": lambda x: tfdist.allreduce(x, op=tfdist.Min, name="x", **FACTORS),
    "product": lambda x: tfdist.allreduce(x, op=tfdist.Product, name="x"),
    "adasum": lambda x: tfdist.allreduce(x, op=tfdist.Adasum, name="x"),
    "fp16": lambda x: tfdist.allreduce(x, compression="fp16", name="x"),
    "bf16": lambda x: tfdist.allreduce(x, compression="bf16", name="x"),
    "factor that is a tensor": lambda x: tfdist.grouped_allreduce(
        [x], op=tfdist.Sum, prescale_factor=tf.cast(tfdist.size_op(), tf.float64) / 3, name="x"
    )[0],
    "weighted average": lambda x: tfdist.grouped_allreduce([x], name="x", weight=tfdist.rank() * 3 + 1)[0],
    "weight that is a tensor": lambda x: tfdist.grouped_allreduce(
        [x], name="x", weight=tf.cast(tfdist.rank_op() * 3 + 1, tf.int64)
    )[0],
    "group": lambda x: tf.concat(
        [tf.reshape(y, [-1]) for y in tfdist.grouped_allreduce([x[:1], x[1, 1], x[2:]], op=tfdist.Sum, name="x")], 0
    ),
    "allgather": lambda x: tfdist.allgather(x, name="x"),
    "allgather of scalars": lambda x: tfdist.allgather(x[1, 1], name="x"),
    "grouped allgather": lambda x: tf.concat(tfdist.grouped_allgather([x[:1], x[2:]], name="x"), 0),
    "broadcast": lambda x: tfdist.broadcast(x, tfdist.size() - 1, name="x"),
    "reducescatter": lambda x: tfdist.reducescatter(x, name="x", **FACTORS),
    "compressed reducescatter": lambda x: tfdist.reducescatter(x, op=tfdist.Sum, compression="bf16", name="x"),
    "grouped reducescatter": lambda x: tf.concat(
        tfdist.grouped_reducescatter([x, 2 * x[1:]], op=tfdist.Sum, name="x"), 0
    ),
    "slices": lambda x: tfdist.allreduce(tf.IndexedSlices(x, tf.range(4), tf.constant([9, 3])), name="x").values,
    "names that need care": lambda x: tfdist.allreduce(x, op=tfdist.Sum, name='a "name"\\ \n{of} ü\0nits'),
}


def gradient_of(function, wrap):
    """Of a sum over the results with weights that differ by rank and place."""

    @wrap
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
            places = tf.cast(tf.reshape(tf.range(tf.size(result)), tf.shape(result)), x.dtype)
            value = tf.reduce_sum(result * (places + 1 + tfdist.rank()))
        return tape.gradient(value, x)

    return gradient


@SIZES
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_eager_mode(world, case):
    x = numbers([4, 3])
    assert_equal(compiled(CASES[case])(x), CASES[case](x).numpy())
    expected = gradient_of(CASES[case], lambda function: function)(x)
    np.testing.assert_allclose(gradient_of(CASES[case], compiled)(x), expected, rtol=1e-5, atol=1e-5)


@SIZES
@pytest.mark.parametrize("dtype", FLOATING)
def test_gradients_of_every_floating_dtype(world, dtype):
    x = numbers([4], dtype)
    gradient = gradient_of(lambda y: tfdist.allreduce(y, op=tfdist.Sum, name="x"), compiled)(x)
    places = world * np.arange(1, 5) + world * (world - 1) / 2
    assert_equal(gradient, places.astype(x.dtype.as_numpy_dtype))


@SIZES
def test_in_a_process_set(world):
    process_sets.start("dynamic", None)
    where = tfdist.add_process_set({1: [0], 2: [1], 3: [0, 2], 4: [1, 2, 3]}[world])
    try:
        if where.included():
            step = compiled(lambda x: tfdist.allgather(tfdist.allreduce(x, name="x", process_set=where), "y", where))
            mean = np.mean(where.ranks) + 1.0
            assert_equal(step(tf.constant([tfdist.rank() + 1.0])), np.full(where.size(), mean, "float32"))
    finally:
        tfdist.remove_process_set(where)
        process_sets.start(None, None)


@SIZES
def test_variables_of_one_rank(world):
    """None is an int32, which TensorFlow keeps on the CPU where a function compiled for a GPU cannot reach it."""
    variables = [tf.Variable(tf.fill([3], tfdist.rank() + 1.0)), tf.Variable(tfdist.rank(), dtype=tf.int64)]

    @compiled
    def step():
        tfdist.broadcast_variables(variables, root_rank=world - 1)
        return variables[0] * 2

    assert np.array_equal(step(), [2.0 * world] * 3)
    assert np.array_equal(variables[0], [world] * 3)
    assert int(variables[1]) == world - 1


@SIZES
def test_barrier_lets_nobody_pass_before_all_have_come(world, shared_tmp_path):
    @compiled
    def meet(x):
        tfdist.barrier(name="compiled")
        return x

    (shared_tmp_path / str(tfdist.rank())).touch()
    if ON_GPU:
        with pytest.raises(tf.errors.UnimplementedError, match=r"Call tfdist\.barrier outside the function"):
            meet(1)
        return
    meet(1)
    assert len(list(shared_tmp_path.glob("*"))) == world


def slowly(x, work, slow_rank=0):
    """The same number; on one rank after a chain of products of matrices, which the programs of the others lack.

    XLA orders calls that do not depend on each other by the whole program, so that programs that differ by rank show
    whether collectives depend on each other as they must.
    """
    if tfdist.rank() != slow_rank:
        return x
    for _ in range(6):
        work = tf.tanh(work @ work)
    return x + 0.0 * tf.reduce_sum(work)


WORK = tf.zeros([256, 256])


def scaled(parts):
    """Sums of x, 10 x, 100 x, ... by the sum of x, where x is the number of the rank and one more."""
    world = tfdist.size()
    return np.array([float(part) for part in parts]) / (world * (world + 1) / 2)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("slow_rank", [0, 1])
def test_independent_collectives_keep_one_order(world, slow_rank):
    """Equal in all but their values, so that no check would see them swapped; the first input is slow on one rank."""

    @compiled
    def step(x, work):
        inputs = [slowly(x, work, slow_rank), x * 10, x * 100, x * 1000]
        return [tfdist.allreduce(y, op=tfdist.Sum, name="same") for y in inputs]

    for _ in range(30):
        sums = step(tf.constant(tfdist.rank() + 1.0), WORK)
        np.testing.assert_allclose(scaled(sums), [1, 10, 100, 1000], rtol=1e-6)


@pytest.mark.ranks(2, 3)
def test_their_gradients_keep_one_order(world):
    """The gradient of the last result comes first, and is slow on one rank."""

    @compiled
    def step(x, work):
        parts = [x * 1.0, x * 2.0, x * 3.0]
        with tf.GradientTape() as tape:
            tape.watch(parts)
            results = [tfdist.allreduce(y, op=tfdist.Sum, name="same") for y in parts]
            value = results[0] + 10.0 * results[1] + slowly(100.0, work) * results[2]
        return tf.stack(tape.gradient(value, parts))

    for _ in range(30):
        gradients = step(tf.constant(tfdist.rank() + 1.0), WORK)
        np.testing.assert_allclose(gradients, [world, 10 * world, 100 * world], rtol=1e-6)


@pytest.mark.ranks(2, 3)
def test_one_order_through_functions_conditionals_and_loops(world):
    variable = tf.Variable(1.0)

    @tf.function
    def nested(x):
        return tfdist.allreduce(x, op=tfdist.Sum, name="same")

    @tf.function(jit_compile=True)
    def step(x, work):
        first = nested(slowly(x, work))
        second = tfdist.allreduce(x * 10, op=tfdist.Sum, name="same")
        if variable > 0:
            variable.assign(tfdist.allreduce(slowly(variable * x, work), op=tfdist.Sum, name="same"))
        third = tfdist.allreduce(x * 100, op=tfdist.Sum, name="same")
        for _ in tf.range(3):
            variable.assign_add(tfdist.allreduce(1.0, op=tfdist.Sum, name="same"))
        return first, second, third, nested(x * 1000)

    for _ in range(10):
        variable.assign(1.0)
        sums = step(tf.constant(tfdist.rank() + 1.0), WORK)
        np.testing.assert_allclose(scaled(sums), [1, 10, 100, 1000], rtol=1e-6)
        assert float(variable) == world * (world + 1) / 2 + 3 * world


@pytest.mark.ranks(2, 3)
def test_the_order_is_that_of_the_program(world):
    """Rank 0 compiles; the others run the same collectives one after the other."""
    wrap = compiled if tfdist.rank() == 0 else (lambda function: function)

    @wrap
    def step(x):
        return [tfdist.allreduce(x * 10.0**power, op=tfdist.Sum, name="same") for power in range(4)]

    np.testing.assert_allclose(scaled(step(tf.constant(tfdist.rank() + 1.0))), [1, 10, 100, 1000], rtol=1e-6)


@pytest.mark.ranks(2, 3)
def test_compiled_and_other_code_in_turn(world):
    """Compiled functions inside one that is not, and eager calls, in one order."""
    fast = compiled(lambda x: tfdist.allreduce(x, op=tfdist.Sum, name="same"))

    @tf.function(autograph=False)
    def step(x, work):
        first = fast(slowly(x, work))
        second = tfdist.allreduce(x * 10, op=tfdist.Sum, name="same")
        return first, second, fast(x * 100)

    x = tf.constant(tfdist.rank() + 1.0)
    for _ in range(10):
        sums = [*step(x, WORK), tfdist.allreduce(x * 1000, op=tfdist.Sum, name="same"), fast(x)]
        np.testing.assert_allclose(scaled(sums), [1, 10, 100, 1000, 1], rtol=1e-6)


def fails_alike(kind, function, *arguments):
    """Calls a compiled function that must fail on every rank alike; returns the text, and computes after it."""
    start = time.monotonic()
    with pytest.raises(kind) as caught:
        compiled(function)(*arguments)
    seconds = time.monotonic() - start
    text = re.split(r" \[Op:|\n\t \[\[", caught.value.message)[0]
    everything = tfdist.allgather_object((text, seconds), name="texts")
    assert len({text for text, _ in everything}) == 1, everything
    assert max(seconds for _, seconds in everything) < LIMIT_SECONDS
    assert float(compiled(lambda: tfdist.allreduce(1.0, op=tfdist.Sum, name="after"))()) == tfdist.size()
    return text


MISMATCHES = {
    "shape": (lambda odd: tfdist.allreduce(tf.zeros([5 if odd else 4]), name="kernel"), ["'kernel'", "[4]", "[5]"]),
    "dtype": (
        lambda odd: tfdist.allreduce(tf.zeros([3], tf.float64 if odd else tf.float32), name="kernel"),
        ["'kernel'", "float32", "float64"],
    ),
    "name": (lambda odd: tfdist.allreduce(0.0, name="bias" if odd else "kernel"), ["'kernel'", "'bias'"]),
    "operation": (
        lambda odd: tfdist.allgather([0.0], name="x") if odd else tfdist.allreduce([0.0], name="x"),
        ["allreduce 'x'", "allgather 'x'"],
    ),
    "factor": (lambda odd: tfdist.allreduce(0.0, prescale_factor=2.0 + odd, name="kernel"), ["prescale", "2", "3"]),
    "root": (lambda odd: tfdist.broadcast(0.0, int(odd), name="weights"), ["'weights'", "root"]),
    "columns": (lambda odd: tfdist.allgather(tf.zeros([2, 6 + odd]), name="rows"), ["'rows'", "6", "7"]),
    "second tensor": (
        lambda odd: tfdist.grouped_allreduce([[0.0], tf.zeros([2 + odd])], name="group"),
        ["'group/1'", "[2]", "[3]"],
    ),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatch_is_an_error_on_every_rank(world, case):
    call, texts = MISMATCHES[case]
    message = fails_alike(tf.errors.FailedPreconditionError, lambda: call(tfdist.rank() == world - 1))
    for text in [*texts, f"rank {world - 1}"]:
        assert text in message


@pytest.mark.ranks(2, 3)
def test_compiled_on_one_rank_only(world):
    """The ranks need not agree on XLA, and a mismatch between the two kinds is found."""
    wrap = compiled if tfdist.rank() == 0 else tf.function
    assert float(wrap(lambda x: tfdist.allreduce(x, op=tfdist.Sum, name="x"))(tf.constant(2.0))) == 2 * world
    with pytest.raises(tf.errors.FailedPreconditionError, match="differs between ranks: shape"):
        wrap(lambda x: tfdist.allreduce(x, op=tfdist.Sum, name="x"))(tf.zeros([1 + (tfdist.rank() == 0)]))


@SIZES
def test_wrong_arguments(world):
    message = fails_alike(
        tf.errors.InvalidArgumentError, lambda: tfdist.allreduce(tf.constant([1]), op=tfdist.Average, name="count")
    )
    assert "'count' has dtype int32" in message
    message = fails_alike(
        tf.errors.InvalidArgumentError,
        lambda weight: tfdist.grouped_allreduce([1.0], weight=weight, name="mean"),
        tf.constant(-1, tf.int64),
    )
    assert ("the weight of an allreduce" if ON_GPU else "the weight -1; expected 0 to 4294967295") in message


@pytest.mark.ranks(2, 3)
def test_allgather_of_unequal_rows_is_refused_on_every_rank(world):
    """With three ranks the rows 1, 2, 3 add up to what XLA expects on rank 1, which must fail too."""
    message = fails_alike(
        tf.errors.InvalidArgumentError, lambda x: tfdist.allgather(x, name="ids"), tf.zeros([tfdist.rank() + 1, 2])
    )
    assert f"by rank: {', '.join(str(rank + 1) for rank in range(world))}" in message
    assert "allgather 'ids'" in message
    assert "outside the function with jit_compile=True" in message


@pytest.mark.ranks(2, 3)
def test_allgather_compiled_on_one_rank_only(world):
    """Unequal rows, which the others could do, are refused there too: no rank is left waiting for rank 0."""
    wrap = compiled if tfdist.rank() == 0 else tf.function
    gather = wrap(lambda x: tfdist.allgather(x, name="ids"))
    assert gather(tf.fill([2], tfdist.rank())).numpy().tolist() == [rank for rank in range(world) for _ in range(2)]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gather(tf.fill([tfdist.rank() + 1], tfdist.rank()))
    assert f"by rank: {', '.join(str(rank + 1) for rank in range(world))}" in caught.value.message
    assert ("jit_compile=True" in caught.value.message) == (tfdist.rank() == 0)
    assert float(tfdist.allreduce(1.0, op=tfdist.Sum, name="after")) == world


@SIZES
@pytest.mark.parametrize("name", ["alltoall", "join"])
def test_what_has_no_form_for_xla_says_what_to_do(world, name):
    function = {"alltoall": lambda: tfdist.alltoall(tf.zeros([world]), name="x"), "join": tfdist.join}[name]
    with pytest.raises(tf.errors.UnimplementedError) as caught:
        compiled(function)()
    assert f"Tfdist{name.title()} cannot be compiled by XLA" in caught.value.message
    assert f"Call tfdist.{name} outside the function with jit_compile=True" in caught.value.message


@SIZES
@pytest.mark.parametrize("name", ["broadcast_object", "allgather_object"])
@pytest.mark.parametrize("jit_compile", [None, True], ids=["function", "compiled"])
def test_objects_stay_outside(world, name, jit_compile):
    wrap = functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    with pytest.raises(tfdist.errors.ConfigError, match=f"{name} 'things' ran inside a tf.function"):
        wrap(lambda: getattr(tfdist, name)([1], name="things"))()


@pytest.mark.ranks(2, 3)
def test_an_error_leaves_variables_as_they_were(world):
    """So that a training can be resumed from them."""
    variable = tf.Variable(tf.fill([4], 3.0))

    @compiled
    def step(x):
        variable.assign_add(tf.ones([4]))
        reduced = tfdist.allreduce(x, op=tfdist.Sum, name="x")
        variable.assign_add(tf.fill([4], tf.reduce_sum(reduced)))

    with pytest.raises(tf.errors.FailedPreconditionError):
        step(tf.ones([1 + (tfdist.rank() == 0)]))
    assert np.array_equal(variable, [3.0] * 4)
    step(tf.ones([1]))
    assert np.array_equal(variable, [4.0 + world] * 4)
