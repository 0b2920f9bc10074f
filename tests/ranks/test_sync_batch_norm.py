"""Batch normalisation over all ranks equals the ordinary layer on the concatenated batch, which every rank computes."""

import itertools
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

SIZES = pytest.mark.ranks(1, 2, 3, 4)
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
CHANNELS = 3
# The shape of a sample, arguments of the layer, and whether the input has a mask.
CASES = {
    "rank_2": ((CHANNELS,), {}, False),
    "rank_3": ((5, CHANNELS), {}, False),
    "rank_4": ((4, 2, CHANNELS), {}, False),
    "channels_first": ((CHANNELS, 4, 2), {"axis": 1}, False),
    "middle_axis": ((4, CHANNELS, 2), {"axis": 2}, False),
    "one_channel": ((5, 1), {}, False),
    "no_center": ((5, CHANNELS), {"center": False}, False),
    "no_scale": ((5, CHANNELS), {"scale": False}, False),
    "plain": ((5, CHANNELS), {"center": False, "scale": False}, False),
    "masked": ((5, CHANNELS), {}, True),
    "masked_rank_4": ((4, 2, CHANNELS), {}, True),
    "masked_one_channel": ((5, 1), {}, True),
    "mask_along_the_channels": ((CHANNELS, 4), {"axis": 1}, True),
    "renorm": ((5, CHANNELS), {"renorm": True, "renorm_clipping": {"rmax": 2.0, "rmin": 0.5, "dmax": 1.0}}, False),
    "float64": ((5, CHANNELS), {"dtype": "float64"}, False),
    "mixed_float16": ((5, CHANNELS), {"dtype": "mixed_float16"}, False),
}
BATCHES = {
    "equal": lambda rank, world: 4,
    "unequal": lambda rank, world: 2 + 3 * rank,
    "last_empty": lambda rank, world: 0 if rank == world - 1 and world > 1 else 3 + rank,
    "first_empty": lambda rank, world: 0 if rank == 0 and world > 1 else 3 + rank,
}


def sample_of(rank, count, shape, dtype="float32"):
    """The inputs, upstream gradients and mask of one rank; mean, spread and mask differ by rank."""
    generator = np.random.default_rng(500 + rank)
    x = generator.normal(rank - 0.5, 1 + rank, size=(count, *shape))
    upstream = generator.normal(size=(count, *shape))
    mask = generator.uniform(size=(count, *shape[:-1])) < 0.7 - 0.1 * rank
    return x.astype(dtype), upstream.astype(dtype), mask


def new_layer(kind, case, seed=3):
    shape, arguments, _ = CASES[case]
    given = {"momentum": 0.6, "moving_mean_initializer": "ones", **arguments}
    layer = kind(
        gamma_initializer=keras.initializers.RandomNormal(1.0, 0.5, seed=seed),
        beta_initializer=keras.initializers.RandomNormal(0.0, 0.5, seed=seed + 1),
        **given,
    )
    layer.build((None, *shape))
    return layer


def train_once(layer, x, upstream, mask, wrap=tf.function):
    """Output, gradient of the input, gradients of the weights, and the statistics after the step."""
    x, upstream = tf.constant(x), tf.constant(upstream)

    def step(x, upstream, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
            loss = tf.reduce_sum(tf.cast(y, upstream.dtype) * upstream)
        return y, *tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

    y, of_input, *of_weights = wrap(step)(x, upstream, mask)
    statistics = [np.asarray(v) for v in layer.non_trainable_variables]
    return np.asarray(y), np.asarray(of_input), [np.asarray(g) for g in of_weights], statistics


def compare(world, case, batches, wrap):
    shape, arguments, masked = CASES[case]
    dtype = arguments.get("dtype", "float32").replace("mixed_", "")
    counts = [BATCHES[batches](rank, world) for rank in range(world)]
    samples = [sample_of(rank, counts[rank], shape, dtype) for rank in range(world)]
    x, upstream, mask = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    ordinary = new_layer(keras.layers.BatchNormalization, case)
    y, of_input, of_weights, statistics = train_once(ordinary, x, upstream, tf.constant(mask) if masked else None)

    rank = tfdist.rank()
    mine = samples[rank]
    layer = new_layer(tfdist.SyncBatchNormalization, case)
    outcome = train_once(layer, mine[0], mine[1], tf.constant(mine[2]) if masked else None, wrap)
    part = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    tolerance = {"float64": 1e-12, "float16": 2e-3}.get(dtype, 2e-5)
    floor = {"float64": 1e-3, "float16": 0.1}.get(dtype, 0.1)
    assert outcome[0].dtype == y.dtype
    assert_close([outcome[0], outcome[1]], [y[part], of_input[part]], tolerance, floor)
    totals = [tfdist.allreduce(gradient, op=tfdist.Sum, name="of weights") for gradient in outcome[2]]
    assert_close(totals, of_weights, tolerance, floor)
    assert_close(outcome[3], statistics, 1e-12 if dtype == "float64" else 1e-5)
    assert_identical_on_ranks(outcome[3], "statistics")


@SIZES
@MODES
@pytest.mark.parametrize("case", CASES)
def test_equals_the_concatenated_batch(world, case, wrap):
    compare(world, case, "unequal", wrap)


@pytest.mark.ranks(2, 3)
@MODES
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("case", ["rank_2", "masked", "channels_first"])
def test_batches_of_any_size(world, case, batches, wrap):
    compare(world, case, batches, wrap)


def test_reference_notices_ranks_that_are_alone(world):
    """What the comparison would see of an ordinary layer: it must fail then."""
    shape, _, _ = CASES["rank_3"]
    samples = [sample_of(rank, 4, shape) for rank in range(world)]
    x, upstream, _ = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    whole = train_once(new_layer(keras.layers.BatchNormalization, "rank_3"), x, upstream, None)
    alone = train_once(new_layer(keras.layers.BatchNormalization, "rank_3"), *samples[tfdist.rank()][:2], None)
    part = slice(4 * tfdist.rank(), 4 * tfdist.rank() + 4)
    for mine, theirs in ((alone[0], whole[0][part]), (alone[1], whole[1][part]), (alone[3][0], whole[3][0])):
        assert np.abs(mine - theirs).max() > 0.05


@SIZES
def test_a_mask_that_hides_everything(world):
    """On one rank: the others decide. On all ranks: mean and variance are 0, as Keras has it."""
    for hidden in (range(1), range(world)):
        counts = [3 + rank for rank in range(world)]
        samples = [sample_of(rank, counts[rank], (5, CHANNELS)) for rank in range(world)]
        masks = [np.zeros_like(sample[2]) if rank in hidden else sample[2] for rank, sample in enumerate(samples)]
        x, upstream = (np.concatenate([sample[k] for sample in samples]) for k in (0, 1))
        ordinary = new_layer(keras.layers.BatchNormalization, "masked")
        y, of_input, _, statistics = train_once(ordinary, x, upstream, tf.constant(np.concatenate(masks)))
        rank = tfdist.rank()
        layer = new_layer(tfdist.SyncBatchNormalization, "masked")
        outcome = train_once(layer, samples[rank][0], samples[rank][1], tf.constant(masks[rank]))
        part = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        assert_close([outcome[0], outcome[1]], [y[part], of_input[part]], 2e-5, 0.1)
        assert_close(outcome[3], statistics, 1e-5)


@SIZES
def test_variance_far_from_zero(world):
    """A mean 10,000 times the deviation: a mean of squares minus a squared mean has no digit left in float32."""
    samples = [1e4 + np.random.default_rng(rank).normal(rank, 1.0, size=(32, CHANNELS)) for rank in range(world)]
    layer = tfdist.SyncBatchNormalization(momentum=0.0)
    layer(tf.constant(samples[tfdist.rank()], tf.float32), training=True)
    whole = np.concatenate(samples).astype("float32").astype("float64")
    assert_close([layer.moving_mean], [whole.mean(axis=0)], 1e-6)
    assert_close([layer.moving_variance], [whole.var(axis=0)], 5e-3)


def test_no_collective_in_inference(world):
    """Rank 0 is alone in each of these; one collective would meet the barrier of the others."""
    layer = tfdist.SyncBatchNormalization()
    x = tf.constant(sample_of(tfdist.rank(), 4, (CHANNELS,))[0])
    layer.build(x.shape)
    before = [np.array(v) for v in layer.variables]
    if tfdist.rank() == 0:
        layer(x)
        layer(x, training=False)
        tf.function(lambda x: layer(x, training=False))(x)
        layer.trainable = False
        layer(x, training=True)
    tfdist.barrier(name="after inference")
    assert_close(layer.variables, before, relative=0)


@SIZES
def test_layers_numbered_differently_by_rank(world):
    """Keras numbers layers by what a process built before."""
    for _ in range(tfdist.rank()):
        keras.layers.BatchNormalization()
    layer = tfdist.SyncBatchNormalization(momentum=0.0)
    layer(tf.fill([2, 1], float(tfdist.rank())), training=True)
    assert_close([layer.moving_mean], [[(world - 1) / 2]], 1e-6)
    names = tfdist.allgather_object(layer.name, name="names")
    assert len(set(names)) == world


def test_channels_that_differ_by_rank(world):
    """The error is raised on every rank and names the layer."""
    layer = tfdist.SyncBatchNormalization(name="shared")
    with pytest.raises(tfdist.errors.MismatchError, match="moments of shared"):
        layer(tf.zeros([2, 3 + tfdist.rank()]), training=True)


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: tf.function(f, autograph=False)], ids=["eager", "function"])
def test_gradients_of_gradients_are_refused(world, wrap):
    layer = tfdist.SyncBatchNormalization()
    x = tf.constant(sample_of(tfdist.rank(), 4, (CHANNELS,))[0])
    layer.build(x.shape)

    def penalty(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(layer(x, training=True) ** 3)
            slope = tf.reduce_sum(inner.gradient(loss, x) ** 2)
        return outer.gradient(slope, x)

    with pytest.raises(LookupError, match="gradients of gradients are not supported"):
        wrap(penalty)(x)


def test_unsynchronized_is_refused(world):
    with pytest.raises(tfdist.errors.ConfigError, match=r"received synchronized=False.*BatchNormalization"):
        tfdist.SyncBatchNormalization(synchronized=False)


def test_arguments_arrive(world):
    """Positional and by name, and through the configuration of an ordinary layer."""
    layer = tfdist.SyncBatchNormalization(1, 0.5, epsilon=0.25, center=False, name="given")
    ordinary = keras.layers.BatchNormalization(1, 0.5, epsilon=0.25, center=False, name="given")
    assert layer.get_config() == {**ordinary.get_config(), "synchronized": True}
    converted = tfdist.SyncBatchNormalization.from_config(ordinary.get_config())
    assert type(converted) is tfdist.SyncBatchNormalization
    assert converted.get_config() == layer.get_config()


@SIZES
def test_a_file_holds_an_ordinary_layer(world, shared_tmp_path):
    """Whole model, weights alone, and weights into a model that has the ordinary layer."""

    def new_model(kind):
        return keras.Sequential([keras.Input((4, CHANNELS)), kind(), keras.layers.Dense(2), kind(name="second")])

    model = new_model(tfdist.SyncBatchNormalization)
    x, _, _ = sample_of(0, 6, (4, CHANNELS))
    model(x, training=True)
    path, weights = shared_tmp_path / "model.keras", shared_tmp_path / "model.weights.h5"
    if tfdist.rank() == 0:
        model.save(path)
        model.save_weights(weights)
        ordinary = new_model(keras.layers.BatchNormalization)
        ordinary.load_weights(weights)
        loaded = keras.models.load_model(path)
        assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in ordinary.layers]
        assert [loaded.layers[k].synchronized for k in (0, 2)] == [True, True]
        for other in (ordinary, loaded):
            assert_close(other.get_weights(), model.get_weights(), relative=0)
            assert_close([other(x)], [model(x)], relative=0)
        assert b"tfdist" not in zipfile.ZipFile(path).read("config.json")


def test_models_are_converted(world):
    """By cloning, which changes what is an ordinary layer and nothing else."""

    def synchronize(layer):
        ordinary = isinstance(layer, keras.layers.BatchNormalization)
        kind = tfdist.SyncBatchNormalization if ordinary else type(layer)
        return kind.from_config(layer.get_config())

    layers = [keras.Input((CHANNELS,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    clone = keras.models.clone_model(model, clone_function=synchronize)
    assert [type(layer) for layer in clone.layers] == [tfdist.SyncBatchNormalization, keras.layers.Dense]
    again = keras.models.clone_model(clone)
    assert type(again.layers[0]) is tfdist.SyncBatchNormalization
    again(tf.fill([2, CHANNELS], float(tfdist.rank())), training=True)
    assert_close([again.layers[0].moving_mean], [np.full(CHANNELS, 0.5 * (world - 1) / 2)], 1e-6)


class Branches(keras.Model):
    """Two branches of the same shapes and names with nothing between them, so that only the program orders them."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.left = keras.Sequential([layers.Dense(6, activation="tanh"), tfdist.SyncBatchNormalization(name="bn")])
        self.right = keras.Sequential([layers.Dense(6, activation="sigmoid"), tfdist.SyncBatchNormalization(name="bn")])
        self.top = layers.Dense(1)

    def call(self, x, training=None):
        return self.top(self.left(x, training=training) * self.right(-x, training=training))


def ancestors(op):
    seen, queue = set(), [op]
    while queue:
        current = queue.pop()
        for above in [*current.control_inputs, *(tensor.op for tensor in current.inputs)]:
            if above.name not in seen:
                seen.add(above.name)
                queue.append(above)
    return seen


@pytest.mark.ranks(2, 3)
def test_collectives_are_chained(world):
    """In the graph of a step each collective depends on the one before, forward and then back, as on all ranks."""
    model = Branches()
    model(tf.zeros([2, 4]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    graph = step.get_concrete_function(tf.TensorSpec([None, 4])).graph
    collectives = [op for op in graph.get_operations() if op.type.startswith("Tfdist")]
    kinds = [op.type for op in collectives]
    assert [kind == "TfdistGroupedAllgather" for kind in kinds] == [True, True, False, False]
    for earlier, later in itertools.pairwise(collectives):
        assert earlier.name in ancestors(later)
    labels = tfdist.allgather_object([op.get_attr("label").decode() for op in collectives if "gather" in op.type])
    assert labels == [labels[0]] * world
