"""A compression of the user's own, wherever a compression is taken: applied in TensorFlow around the collective."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.compression import Compressor
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

SIZES = pytest.mark.ranks(1, 2, 3, 4)
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])


class Scaled(Compressor):
    """Halves travel as whole numbers of 16 bits; exact for small numbers."""

    def __init__(self):
        self.seen = []

    def compress(self, tensor):
        self.seen.append(tensor.dtype.name)
        return tf.cast(tensor * 2, tf.float16), tensor.dtype

    def decompress(self, tensor, ctx):
        assert tensor.dtype == tf.float16
        return tf.cast(tensor, ctx) / 2


class FirstOnly:
    """Written against Horovod, and visible in the result: all but the first element are dropped."""

    @staticmethod
    def compress(tensor):
        return tf.reshape(tensor, [-1])[:1], tf.shape(tensor)

    @staticmethod
    def decompress(tensor, ctx):
        rest = tf.zeros([tf.reduce_prod(ctx) - 1], tensor.dtype)
        return tf.reshape(tf.concat([tensor, rest], axis=0), ctx)


def value(shape=(3,)):
    """Halves that differ by rank and element."""
    numbers = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)
    return tf.constant(numbers + (tfdist.rank() + 1) / 2)


def total(world, shape=(3,)):
    numbers = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)
    return world * numbers + world * (world + 1) / 4


@SIZES
@MODES
def test_allreduce(world, wrap):
    own = Scaled()
    reduced = wrap(lambda: tfdist.allreduce(value(), op=tfdist.Sum, compression=own, name="x"))()
    assert own.seen == ["float32"]
    np.testing.assert_array_equal(reduced, total(world))


@SIZES
@MODES
def test_factors_act_on_what_travels(world, wrap):
    def reduce():
        return tfdist.allreduce(
            value(), op=tfdist.Sum, compression=Scaled(), prescale_factor=4.0, postscale_factor=0.5, name="x"
        )

    np.testing.assert_array_equal(wrap(reduce)(), 2 * total(world))


@SIZES
@MODES
def test_grouped_allreduce(world, wrap):
    tensors = [value((2, 2)), tf.cast(value((3,)), tf.float64), value(())]
    reduced = wrap(lambda: tfdist.grouped_allreduce(tensors, op=tfdist.Sum, compression=FirstOnly, name="g"))()
    for tensor, given, shape in zip(reduced, tensors, [(2, 2), (3,), ()], strict=True):
        assert tensor.dtype == given.dtype
        expected = np.zeros(shape)
        expected.flat[0] = total(world, shape).flat[0]
        np.testing.assert_array_equal(tensor, expected)


@pytest.mark.ranks(2, 3)
def test_its_gradient(world):
    """The gradient of a sum is the sum of the gradients, through both casts."""
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = tfdist.allreduce(x, op=tfdist.Sum, compression=Scaled(), name="x") * (tfdist.rank() + 1.0)
    np.testing.assert_array_equal(tape.gradient(y, x), np.full(2, world * (world + 1) / 2))


@pytest.mark.ranks(1, 2)
def test_members_as_horovod_calls_them(world):
    """Code that compresses by hand gives what the argument gives."""
    compressed, ctx = tfdist.Compression.fp16.compress(value())
    by_hand = tfdist.Compression.fp16.decompress(tfdist.allreduce(compressed, name="x"), ctx)
    np.testing.assert_array_equal(by_hand, tfdist.allreduce(value(), compression=tfdist.Compression.fp16, name="x"))


@SIZES
@MODES
def test_tape(world, wrap):
    v = tf.Variable([1.0, 1.0])
    own = Scaled()

    def step():
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(v) * (tfdist.rank() + 1.0)
        return tfdist.DistributedGradientTape(tape, op=tfdist.Sum, compression=own).gradient(target, v)

    np.testing.assert_array_equal(wrap(step)(), np.full(2, world * (world + 1) / 2))
    assert own.seen == ["float32"]


@SIZES
@pytest.mark.parametrize("partial", [False, True])
def test_optimizer(world, partial):
    """Gathered rows and local variables are not compressed."""
    dense, table, local = tf.Variable([1.0, 1.0]), tf.Variable(tf.ones([3, 1])), tf.Variable(1.0)
    own = Scaled()
    make = tfdist.PartialDistributedOptimizer if partial else tfdist.DistributedOptimizer
    optimizer = make(keras.optimizers.SGD(1.0), compression=own, op=tfdist.Sum)
    optimizer.register_local_var(local)
    share = tfdist.rank() + 1.0
    slices = tf.IndexedSlices(tf.fill([1, 1], share), tf.constant([1]), tf.constant([3, 1]))
    optimizer.apply_gradients([(tf.fill([2], share), dense), (slices, table), (tf.constant(share), local)])
    assert own.seen == ["float32"]
    summed = 1 - world * (world + 1) / 2
    np.testing.assert_array_equal(dense, [summed, summed])
    np.testing.assert_array_equal(table, [[1.0], [summed], [1.0]])
    assert float(local) == pytest.approx(1 - share / world)


def new_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


def fit(model, *callbacks):
    x = np.random.default_rng(tfdist.rank()).normal(size=(8, 2)).astype("float32")
    model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=list(callbacks))
    return model.get_weights()


@pytest.mark.ranks(1, 2, 3)
def test_plugin(world):
    """Within the precision of 16 bits of what no compression gives; a second `fit` may take another one."""
    own = Scaled()
    model = new_model()
    weights = fit(model, tfdist.callbacks.DataParallel(compression=own))
    assert own.seen == ["float32"] * 4
    assert_identical_on_ranks(weights)
    assert_close(weights, fit(new_model(), tfdist.callbacks.DataParallel()), relative=2**-8, floor=0.1)
    fit(model, tfdist.callbacks.DataParallel(compression="none"))
    assert own.seen == ["float32"] * 4


@pytest.mark.ranks(1)
def test_what_is_no_compression_is_refused_everywhere(world):
    for take in (
        lambda c: tfdist.allreduce(value(), compression=c),
        lambda c: tfdist.grouped_allreduce([value()], compression=c),
        lambda c: tfdist.DistributedOptimizer(keras.optimizers.SGD(), compression=c),
        lambda c: tfdist.DistributedGradientTape(tf.GradientTape(), compression=c),
        lambda c: tfdist.callbacks.DataParallel(compression=c),
        lambda c: tfdist.optimizer.distribute(keras.optimizers.SGD(), compression=c),
    ):
        with pytest.raises(tfdist.errors.ConfigError, match="pass an instance of the class"):
            take(Scaled)
