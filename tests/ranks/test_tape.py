"""Gradients of collectives in control flow from wherever a tape may be, to second order; one order of collectives."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.graph import xla

# Twice y * average(y): with m, the average of the ranks' x, the result is x m^3, the gradient of the sum of all results
# 4 m^3, and the gradient of the sum of all gradients 12 m^2.


def powered(y):
    return y * tfdist.allreduce(y, name="y")


@tf.function
def powered_in_function(y):
    return powered(y)


def powers_straight(y):
    return powered(powered(y))


def powers_in_loop(y):
    for _ in tf.range(2):
        y = powered(y)
    return y


def powers_of_function_in_loop(y):
    for _ in tf.range(2):
        y = powered_in_function(y)
    return y


def powers_in_cond(y):
    for _ in range(2):
        y = tf.cond(y[0] < 1e9, lambda y=y: powered(y), lambda y=y: y)
    return y


def powers_of_function(y):
    return powered_in_function(powered_in_function(y))


POWERS = {
    function.__name__: function
    for function in (powers_straight, powers_in_loop, powers_of_function_in_loop, powers_in_cond, powers_of_function)
}


def twice(flow, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = flow(x)
        first = inner.gradient(y, x)
    return y, first, outer.gradient(first, x)


def once(flow, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = flow(x)
    return y, tape.gradient(y, x), None


def by_persistent_tape(flow, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = flow(x)
        total = tf.reduce_sum(y)
    first, again = tape.gradient(y, x), tape.gradient(total, x)
    return y, 0.5 * (first + again), None


def by_symbols(flow, x):
    y = flow(x)
    return y, tf.gradients(y, x)[0], None


def compiled(function):
    return tf.function(function, jit_compile=True)


# XLA cannot hand on what the gradient of a loop needs from one compiled function to another.
COMPILED = {
    "in_function": (lambda flow, x: compiled(lambda x: once(flow, x)[:2])(x), tuple(POWERS)),
    "around_function": (lambda flow, x: once(compiled(flow), x)[:2], ("powers_in_cond", "powers_of_function")),
}

# Value, gradient and, where tapes are nested, the gradient of the gradient.
ORDERS = {
    "eager": once,
    "persistent": tf.function(by_persistent_tape),
    "tf.gradients": tf.function(by_symbols),
    "second_order": tf.function(twice),
    "second_order_around_function": lambda flow, x: twice(tf.function(flow), x),
}


def check_powers(world, name, wrap):
    x = np.array([0.5, 1.0, 2.0]) * (1 + tfdist.rank())
    mean = np.array([0.5, 1.0, 2.0]) * (world + 1) / 2
    y, first, *second = wrap(POWERS[name], tf.constant(x))
    np.testing.assert_allclose(y, x * mean**3, rtol=1e-12)
    np.testing.assert_allclose(first, 4 * mean**3, rtol=1e-12)
    if second and second[0] is not None:
        np.testing.assert_allclose(second[0], 12 * mean**2, rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_other_tapes(world, order):
    for name in POWERS:
        check_powers(world, name, ORDERS[order])


@pytest.mark.skipif(bool(xla.obstacle()), reason=xla.obstacle() or "")
@pytest.mark.parametrize("place", COMPILED)
def test_compiled(world, place):
    wrap, names = COMPILED[place]
    for name in names:
        check_powers(world, name, wrap)


@pytest.mark.skipif(bool(xla.obstacle()), reason=xla.obstacle() or "")
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: tf.function(f, autograph=False)], ids=["eager", "in_function"])
def test_tape_around_a_compiled_loop_is_refused(world, wrap):
    flow = compiled(powers_in_loop)
    with pytest.raises(tfdist.errors.ConfigError, match="has jit_compile=True and a loop"):
        wrap(lambda x: once(flow, x)[1])(tf.ones([3]))
    assert float(compiled(powers_in_loop)(tf.ones([1]))[0]) == 1


def test_tape_inside_of_the_loop(world):
    """Three steps of gradient descent in one graph; the loss of a rank is (average of the ranks' x - rank)^2."""

    @tf.function
    def descend(x):
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = (tfdist.allreduce(x, name="x") - tfdist.rank()) ** 2
            x -= 0.1 * tape.gradient(loss, x)
        return x

    x, target = 3.0 + np.arange(world), np.arange(world)
    for _ in range(3):
        x = x - 0.1 * 2 * (world * np.mean(x) - target.sum()) / world
    np.testing.assert_allclose(descend(tf.constant(3.0 + tfdist.rank())), x[tfdist.rank()], rtol=1e-5)


@tf.function
def summed(x):
    return tfdist.allreduce(x, op=tfdist.Sum, name="same")


def test_functions_under_an_outer_tape_keep_one_order(world):
    """Collectives equal in all but their values, in functions and loops that only the program orders."""

    @tf.function
    def loss(x, y):
        work = tf.zeros([100 if tfdist.rank() == 0 else 1, 64, 64])
        slow = tf.reduce_sum(tf.foldl(lambda total, matrix: total @ matrix, work))
        parts = [summed(y), tfdist.allreduce(x, op=tfdist.Sum, name="same"), summed(x + y)]
        z = x - y
        for _ in tf.range(1):
            z = tfdist.allreduce(z, op=tfdist.Sum, name="same")
        parts += [z, summed(2.0 * y)]
        # The gradient begins with the last ones; what comes of them is late on one rank.
        factors = [1.0, 10.0, 100.0, 1000.0 + slow, 10000.0 + slow]
        return tf.add_n([factor * (tfdist.rank() + 1) * part for factor, part in zip(factors, parts, strict=True)])

    total = world * (world + 1) / 2
    for _ in range(10):
        of_x, of_y = gradients_of(loss, tf.constant(1.0), tf.constant(2.0))
        assert float(of_x) == total * (10 + 100 + 1000)
        assert float(of_y) == total * (1 + 100 - 1000 + 20000)
    (of_z,) = gradients_of(summed, tf.constant(3.0))  # called eagerly after it was traced in a function
    assert float(of_z) == world


def gradients_of(loss, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = loss(*inputs)
    return tape.gradient(value, inputs)


def test_vectorized_map_and_jacobian(world):
    """TensorFlow makes loops of collectives there, one after the other on every rank."""
    x = tf.reshape(tf.range(6.0), [3, 2]) + tfdist.rank()
    shift = world * (world - 1) / 2

    def both(row):
        first = tfdist.allreduce(row, op=tfdist.Sum, name="same")
        return first + 10.0 * tfdist.allreduce(2.0 * row, op=tfdist.Sum, name="same")

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.vectorized_map(both, x)
        return y, tape.gradient(y, x)

    y, slopes = gradient(x)
    np.testing.assert_allclose(y, 21 * (np.arange(6.0).reshape(3, 2) * world + shift))
    np.testing.assert_allclose(slopes, np.full([3, 2], 21.0 * world))
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(both(x), axis=1)
    expected_jacobian = 21.0 * world * np.einsum("ij,k->ijk", np.eye(3), np.ones(2))
    np.testing.assert_allclose(tape.jacobian(total, x), expected_jacobian)


def test_ranks_that_repeat_unequally(world):
    """The number of repetitions is the user's; what differs by rank is an error on all ranks."""

    @tf.function
    def repeat(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(tfdist.rank() + 1):
                y = tfdist.allreduce(y, name="in loop")
        return tfdist.allreduce(tape.gradient(y, x), name="after the loop")

    with pytest.raises(tf.errors.FailedPreconditionError, match="in loop"):
        repeat(tf.constant(1.0))


@pytest.mark.ranks(1)
def test_a_graph_is_freed_with_its_function(world):
    function = tf.function(lambda x: once(powers_of_function_in_loop, x)[1])
    graph = weakref.ref(function.get_concrete_function(tf.TensorSpec([3], tf.float64)).graph)
    assert graph() is not None
    del function
    gc.collect()
    assert graph() is None
