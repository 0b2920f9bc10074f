"""Collectives and their gradients in control flow: compared with the same function of what all ranks put in, in NumPy.

`step` feeds one vector to every collective at once, so that only the program orders them, and adds up what they return;
a flow applies it twice. Its gradient is that of the sum over the ranks, by differences.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.world import process_sets

TIMES = 2
DIFFERENCE = 1e-5
WAVES = 4  # rows a rank of the vector that travels


def folded(rows, world):
    """The parts that came from each rank, added up by other weights."""
    return sum((index + 1.0) * part for index, part in enumerate(np.split(rows, world)))


def folded_tensor(rows, world):
    return tf.add_n([(index + 1.0) * part for index, part in enumerate(tf.split(rows, world))])


def adasum(parts):
    while len(parts) > 1:
        pairs = [
            (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
            for a, b in zip(parts[::2], parts[1::2], strict=False)
        ]
        parts = pairs + parts[len(parts) // 2 * 2 :]
    return parts[0]


def alike(function):
    """For collectives whose result is the same on every rank."""
    return lambda xs: [function(xs)] * len(xs)


def in_first_two(xs):
    return [np.mean(xs[:2], axis=0) if rank < 2 else x for rank, x in enumerate(xs)]


def exchanged(xs):
    parts = [np.split(x, len(xs)) for x in xs]
    return [np.concatenate([part[rank] for part in parts]) for rank in range(len(xs))]


def scattered(xs):
    return [np.tile(part, len(xs)) for part in np.split(np.sum(xs, axis=0), len(xs))]


def in_two_groups(collective):
    def call(x):
        first, second = collective([x[:2], x[2:]])
        return tf.concat([first, second], 0)

    return call


def pair_of_rows(x):
    rows = tf.reshape(x, [-1, 2])
    return tf.transpose(rows)


def unequal_rows(x):
    """Rank r takes part with r + 1 rows; everybody adds all of them up."""
    rows = tfdist.allgather(x[: tfdist.rank() + 1], name="rows")
    return x + tf.reduce_sum(rows)


class Halved(tfdist.compression.Compressor):
    def compress(self, tensor):
        return tensor / 2, None

    def decompress(self, tensor, ctx):
        return tensor * 2


def slices(x):
    halves = tf.reshape(x, [2, -1])
    reduced = tfdist.allreduce(tf.IndexedSlices(halves, tf.constant([1, 0]), tf.constant([2, 1])), name="slices")
    return tf.reshape(tf.math.unsorted_segment_sum(reduced.values, reduced.indices, 2), [-1])


# Name -> the collective, and the same of the vectors of all ranks: a list of results.
COLLECTIVES = {
    "sum": (lambda x: tfdist.allreduce(x, op=tfdist.Sum, name="x"), alike(lambda xs: np.sum(xs, axis=0))),
    "another sum": (
        lambda x: tfdist.allreduce(2.0 * x, op=tfdist.Sum, name="x"),
        alike(lambda xs: 2 * np.sum(xs, axis=0)),
    ),
    "average": (
        lambda x: tfdist.allreduce(x, prescale_factor=-0.5, postscale_factor=3.0),
        alike(lambda xs: -1.5 * np.mean(xs, axis=0)),
    ),
    "weighted": (
        lambda x: tfdist.grouped_allreduce([x], weight=tfdist.rank() + 1)[0],
        alike(lambda xs: np.average(xs, axis=0, weights=1 + np.arange(len(xs)))),
    ),
    "min": (lambda x: tfdist.allreduce(x, op=tfdist.Min), alike(lambda xs: np.min(xs, axis=0))),
    "max": (lambda x: tfdist.allreduce(x, op=tfdist.Max), alike(lambda xs: np.max(xs, axis=0))),
    "product": (lambda x: tfdist.allreduce(x, op=tfdist.Product), alike(lambda xs: np.prod(xs, axis=0))),
    "adasum": (lambda x: tfdist.allreduce(x, op=tfdist.Adasum), alike(adasum)),
    "grouped": (
        in_two_groups(lambda parts: tfdist.grouped_allreduce(parts, op=tfdist.Sum)),
        alike(lambda xs: np.sum(xs, axis=0)),
    ),
    "own compression": (
        lambda x: tfdist.allreduce(x, op=tfdist.Sum, compression=Halved()),
        alike(lambda xs: np.sum(xs, axis=0)),
    ),
    "process set": (
        lambda x: tfdist.allreduce(x, process_set=FIRST_TWO[0]) if tfdist.rank() < 2 else x,
        in_first_two,
    ),
    "slices": (slices, alike(lambda xs: np.roll(np.mean(xs, axis=0), len(xs[0]) // 2))),
    "allgather": (
        lambda x: folded_tensor(tfdist.allgather(x), tfdist.size()),
        alike(lambda xs: folded(np.concatenate(xs), len(xs))),
    ),
    "unequal rows": (
        unequal_rows,
        lambda xs: [x + sum(np.sum(y[: rank + 1]) for rank, y in enumerate(xs)) for x in xs],
    ),
    "grouped allgather": (
        in_two_groups(lambda parts: [folded_tensor(y, tfdist.size()) for y in tfdist.grouped_allgather(parts)]),
        alike(lambda xs: folded(np.concatenate(xs), len(xs))),
    ),
    "broadcast": (lambda x: tfdist.broadcast(x, tfdist.size() - 1), alike(lambda xs: xs[-1])),
    "grouped broadcast": (in_two_groups(lambda parts: tfdist.grouped_broadcast(parts, 0)), alike(lambda xs: xs[0])),
    "alltoall": (tfdist.alltoall, exchanged),
    "alltoall with splits": (
        lambda x: tf.reshape(tfdist.alltoall(x, [x.shape[0] // tfdist.size()] * tfdist.size())[0], x.shape),
        exchanged,
    ),
    "reducescatter": (lambda x: tf.tile(tfdist.reducescatter(x, op=tfdist.Sum), [tfdist.size()]), scattered),
    "grouped reducescatter": (
        lambda x: tf.tile(tfdist.grouped_reducescatter([x, 2.0 * x], op=tfdist.Sum)[0], [tfdist.size()]),
        scattered,
    ),
}
FIRST_TWO = []  # the process set


def step(x):
    """All collectives side by side; the first ones wait for a slow computation on rank 0."""
    rounds = 40 if tfdist.rank() == 0 else 1
    slow = tf.foldl(lambda total, matrix: total @ matrix, tf.zeros([rounds, 48, 48], x.dtype))
    late = x + tf.reduce_sum(slow)
    parts = [call(late if index < 2 else x) for index, (call, _) in enumerate(COLLECTIVES.values())]
    return tf.tanh(sum(weight * part for weight, part in zip(weights(), parts, strict=True)) + x)


def weights():
    return [0.1 + 0.01 * index for index in range(len(COLLECTIVES))]


def step_of_all(xs):
    results = [model(xs) for _, model in COLLECTIVES.values()]
    sums = [sum(w * result[rank] for w, result in zip(weights(), results, strict=True)) for rank in range(len(xs))]
    return [np.tanh(total + x) for total, x in zip(sums, xs, strict=True)]


def repeated(xs, times=TIMES):
    for _ in range(times):
        xs = step_of_all(xs)
    return xs


def input_of(rank, world):
    return np.random.default_rng(3 + rank).uniform(0.3, 0.9, WAVES * world) * (1 + 0.1 * rank)


def loss_weights(rank, world):
    return np.random.default_rng(50 + rank).uniform(0.5, 2.0, WAVES * world)


@functools.cache
def expected(world, times):
    """Value of this rank, and the gradient of the sum over all ranks by this rank's input."""
    xs = [input_of(rank, world) for rank in range(world)]
    rank = tfdist.rank()

    def total(mine):
        ys = repeated([mine if other == rank else x for other, x in enumerate(xs)], times)
        return sum(loss_weights(other, world) @ y for other, y in enumerate(ys))

    slopes = []
    for index in range(len(xs[rank])):
        move = np.zeros(len(xs[rank]))
        move[index] = DIFFERENCE
        slopes.append((total(xs[rank] + move) - total(xs[rank] - move)) / (2 * DIFFERENCE))
    return repeated(xs, times)[rank], np.array(slopes)


# The flows, each a function of x that applies `step` twice.


def straight(x):
    for _ in range(TIMES):
        x = step(x)
    return x


def python_for(x):
    for _ in tf.range(TIMES):
        x = step(x)
    return x


def python_while(x):
    index = tf.constant(0)
    while index < TIMES:
        x = step(x)
        index += 1
    return x


def while_loop(x):
    return tf.while_loop(lambda i, _: i < TIMES, lambda i, y: [i + 1, step(y)], [0, x], maximum_iterations=TIMES)[1]


def collective_in_condition(x):
    def more(i, y):
        return tf.logical_and(i < TIMES, tfdist.allreduce(tf.reduce_sum(y), op=tfdist.Max, name="more") < 1e9)

    return tf.while_loop(more, lambda i, y: [i + 1, step(y)], [0, x])[1]


def scan(x):
    return tf.scan(lambda y, _: step(y), tf.range(TIMES), initializer=x)[-1]


def foldl(x):
    return tf.foldl(lambda y, _: step(y), tf.range(TIMES), initializer=x)


def map_fn(x):
    """Elements one after the other."""
    return step(tf.map_fn(step, tf.stack([x, x]), parallel_iterations=4)[1])


def cond(x):
    for _ in range(TIMES):
        x = tf.cond(tf.reduce_sum(x) < 1e9, lambda y=x: step(y), lambda y=x: y)
    return x


def case(x):
    for _ in range(TIMES):
        pairs = [(tf.reduce_sum(x) > 1e9, lambda y=x: y), (tf.reduce_sum(x) < 1e9, lambda y=x: step(y))]
        x = tf.case(pairs, default=lambda y=x: -y)
    return x


def switch_case(x):
    for index in range(TIMES):
        number = tf.cast(tf.reduce_sum(x) * 0.0, tf.int32) + 1
        x = tf.switch_case(number, [lambda y=x: y, lambda y=x: step(y), lambda y=x: -y], name=f"switch{index}")
    return x


@tf.function
def nested(x):
    return step(x)


@tf.function
def nested_loop(x):
    for _ in tf.range(TIMES):
        x = step(x)
    return x


@tf.function
def in_another(x):
    return nested(x)


def functions(x):
    return nested(in_another(x))


def function_in_loop(x):
    for _ in tf.range(TIMES):
        x = in_another(x)
    return x


def function_in_while_loop(x):
    return tf.while_loop(lambda i, _: i < TIMES, lambda i, y: [i + 1, nested(y)], [0, x])[1]


def loop_in_function(x):
    return nested_loop(x)


def loop_in_function_in_loop(x):
    for _ in tf.range(1):
        x = nested_loop(x)
    return x


def loop_in_loop(x):
    for _ in tf.range(1):
        for _ in tf.range(TIMES):
            x = step(x)
    return x


def loop_in_cond(x):
    if tf.reduce_sum(x) < 1e9:
        for _ in tf.range(TIMES):
            x = step(x)
    return x


def cond_in_loop(x):
    for index in tf.range(TIMES):
        if index < 1:
            x = step(x)
        else:
            x = nested(x)
    return x


def function_in_cond(x):
    for _ in range(TIMES):
        if tf.reduce_sum(x) < 1e9:
            x = nested(x)
    return x


def beside_a_loop(x):
    for _ in tf.range(1):
        x = nested(x)
    return step(x)


class Cell(keras.layers.Layer):
    """Its state is the vector; what it gets does not matter."""

    def __init__(self, width, call):
        super().__init__(dtype="float64")
        self.state_size, self._step = width, call

    def call(self, inputs, states):
        y = self._step(states[0][0])[tf.newaxis] + 0.0 * tf.reduce_sum(inputs)
        return y, [y]


def rnn(unroll, call=step):
    def flow(x):
        layer = keras.layers.RNN(Cell(x.shape[0], call), unroll=unroll, dtype="float64")
        return layer(tf.zeros([1, TIMES, 1], tf.float64), initial_state=[x[tf.newaxis]])[0]

    return flow


@tf.custom_gradient
def own_gradient(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = step(x)
    return y, lambda upstream: tape.gradient(y, x, output_gradients=upstream)


def custom_gradient(x):
    for _ in range(TIMES):
        x = own_gradient(x)
    return x


def recompute(x):
    again = tf.recompute_grad(step)
    for _ in range(TIMES):
        x = again(x)
    return x


@tf.custom_gradient
def again_in_backward(x):
    """Computes the step in the backward pass once more, as recompute_grad does."""

    def gradient(upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = step(x)
        return tape.gradient(y, x, output_gradients=upstream)

    return step(x), gradient


@tf.custom_gradient
def function_again_in_backward(x):
    def gradient(upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = nested(x)
        return tape.gradient(y, x, output_gradients=upstream)

    return nested(x), gradient


def recompute_in_loop(x):
    for _ in tf.range(TIMES):
        x = again_in_backward(x)
    return x


def recompute_function_in_loop(x):
    for _ in tf.range(TIMES):
        x = function_again_in_backward(x)
    return x


FLOWS = {
    function.__name__: function
    for function in (
        *(straight, python_for, python_while, while_loop, collective_in_condition, scan, foldl, map_fn, cond, case),
        *(switch_case, functions, function_in_loop, function_in_while_loop, loop_in_function, loop_in_function_in_loop),
        *(loop_in_loop, loop_in_cond, cond_in_loop, function_in_cond, beside_a_loop, custom_gradient, recompute),
        *(recompute_in_loop, recompute_function_in_loop),
    )
} | {
    "rnn": rnn(unroll=False),
    "rnn_unrolled": rnn(unroll=True),
    "rnn_of_function": rnn(unroll=False, call=nested),
}


def by_tape(flow, x, w):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = flow(x)
        loss = tf.reduce_sum(w * y)
    return y, tape.gradient(loss, x)


# Where the gradient is taken.
TAPES = {
    "in_function": tf.function(by_tape),
    "around_function": lambda flow, x, w: by_tape(tf.function(flow), x, w),
}


@pytest.fixture(scope="module")
def first_two():
    """One for all tests: functions that are traced once hold its number."""
    process_sets.start("dynamic", None)
    FIRST_TWO[:] = [tfdist.add_process_set(list(range(min(tfdist.size(), 2))))]
    yield
    tfdist.remove_process_set(FIRST_TWO[0])
    process_sets.start(None, None)


def check(world, name, tape):
    value, slopes = expected(world, TIMES)
    x, w = (tf.constant(f(tfdist.rank(), world)) for f in (input_of, loss_weights))
    y, gradient = TAPES[tape](FLOWS[name], x, w)
    np.testing.assert_allclose(y, value, rtol=1e-9)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tape", TAPES)
@pytest.mark.parametrize("name", FLOWS)
def test_value_and_gradient(world, first_two, name, tape):
    check(world, name, tape)
