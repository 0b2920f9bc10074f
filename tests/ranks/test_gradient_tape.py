"""The distributed tape: exact gradients, every way to ask for them, and what it leaves to the wrapped tape."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

SIZES = pytest.mark.ranks(1, 2, 3, 4)
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])


def share():
    """This rank's coefficient: 1, 2, 3, ..."""
    return tfdist.rank() + 1.0


def mean(world):
    return (world + 1) / 2


def gradient_of(sources, loss, **arguments):
    """The gradient by a distributed tape of a loss that is this rank's coefficient times `loss()`."""
    with tf.GradientTape() as tape:
        target = share() * loss()
    return tfdist.DistributedGradientTape(tape, **arguments).gradient(target, sources)


STRUCTURES = {
    "single": lambda a, b, c: a,
    "list": lambda a, b, c: [a, b, c],
    "tuple": lambda a, b, c: (c, a),
    "dict": lambda a, b, c: {"second": b, "first": a},
    "nested": lambda a, b, c: {"pair": (a, [b]), "last": c},
    "twice": lambda a, b, c: [a, b, a],
}


@SIZES
@MODES
@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable], ids=["tf", "keras"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures(world, structure, kind, wrap):
    """d/dv of sum(v * k) is k; the gradients come back in the structure of the sources."""
    variables = [kind(np.ones(shape, "float32")) for shape in ((2,), (3, 1), ())]
    factors = {id(variable): 10.0**index for index, variable in enumerate(variables)}
    sources = STRUCTURES[structure](*variables)

    def step():
        return gradient_of(sources, lambda: sum(tf.reduce_sum(v * factors[id(v)]) for v in variables))

    gradients = wrap(step)()
    tf.nest.assert_same_structure(gradients, tf.nest.map_structure(lambda v: 0, sources))
    for gradient, source in zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=True):
        np.testing.assert_array_equal(gradient, np.full(source.shape, mean(world) * factors[id(source)], "float32"))


def mixed():
    dense, table, unused, half = (
        tf.Variable(tf.ones([2])),
        tf.Variable(tf.zeros([6, 2])),
        tf.Variable(1.0),
        tf.Variable(tf.ones([3], tf.float16)),
    )
    rows = [tfdist.rank(), 5]

    def loss():
        looked_up = tf.reduce_sum(tf.gather(table, rows))
        return tf.reduce_sum(dense) + looked_up + tf.cast(tf.reduce_sum(half), tf.float32)

    return [dense, table, unused, half], loss


@SIZES
@MODES
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["gathered", "dense"])
@pytest.mark.parametrize("arguments", [{}, {"num_groups": 2}, {"groups": 9}], ids=["one", "two_groups", "many_groups"])
def test_mixed_gradients_keep_order_and_kinds(world, arguments, sparse_as_dense, wrap):
    sources, loss = mixed()

    def step():
        return gradient_of(sources, loss, sparse_as_dense=sparse_as_dense, **arguments)

    dense, table, unused, half = wrap(step)()
    assert unused is None
    assert isinstance(table, tf.IndexedSlices) != sparse_as_dense
    assert half.dtype == tf.float16
    np.testing.assert_array_equal(dense, np.full(2, mean(world), "float32"))
    np.testing.assert_array_equal(half, np.full(3, mean(world), "float16"))
    expected = np.zeros((6, 2))
    for rank in range(world):
        expected[rank] += (rank + 1) / world
        expected[5] += (rank + 1) / world
    assert_close([tf.convert_to_tensor(table)], [expected], relative=1e-6)


SETTINGS = {
    "average": ({}, mean),
    "sum": ({"op": tfdist.Sum}, lambda world: mean(world) * world),
    "predivided": ({"gradient_predivide_factor": 4.0}, mean),
    "fp16": ({"compression": tfdist.Compression.fp16}, mean),
}


@SIZES
@MODES
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(world, setting, wrap):
    arguments, expected = SETTINGS[setting]
    v = tf.Variable([1.0, 2.0])
    gradient = wrap(lambda: gradient_of([v], lambda: tf.reduce_sum(v), **arguments)[0])()
    assert_close([gradient], [np.full(2, expected(world))], relative=2**-11)


@SIZES
@MODES
def test_unconnected_gradients(world, wrap):
    v, other = tf.Variable(2.0), tf.Variable([1.0, 1.0])

    def step(unconnected):
        with tf.GradientTape() as tape:
            target = share() * v
        tape = tfdist.DistributedGradientTape(tape)
        return tape.gradient(target, [other, v], unconnected_gradients=unconnected)

    nothing, gradient = wrap(lambda: step(tf.UnconnectedGradients.NONE))()
    assert nothing is None
    assert float(gradient) == mean(world)
    zeros, gradient = wrap(lambda: step("zero"))()
    np.testing.assert_array_equal(zeros, [0.0, 0.0])
    assert float(gradient) == mean(world)


@SIZES
@MODES
def test_output_gradients(world, wrap):
    v = tf.Variable([1.0, 1.0])

    def step():
        with tf.GradientTape() as tape:
            target = [v * 2.0, tf.reduce_sum(v)]
        output = [tf.constant([share(), 10.0]), tf.constant(100.0)]
        return tfdist.DistributedGradientTape(tape).gradient(target, v, output)

    np.testing.assert_array_equal(wrap(step)(), np.float32([2 * mean(world) + 100, 120.0]))


@SIZES
@MODES
def test_a_persistent_tape_gives_local_and_reduced_gradients(world, wrap):
    """The wrapped tape stays what it was; the distributed one may be asked more than once."""
    a, b = tf.Variable(1.0), tf.Variable(1.0)

    def step():
        with tf.GradientTape(persistent=True) as tape:
            target = share() * (a + 10.0 * b)
        distributed = tfdist.DistributedGradientTape(tape)
        return distributed.gradient(target, a), tape.gradient(target, a), distributed.gradient(target, b)

    assert [float(gradient) for gradient in wrap(step)()] == [mean(world), share(), 10 * mean(world)]


@SIZES
@MODES
def test_as_a_context_manager(world, wrap):
    """Wrapped before it records, as the tape is used everywhere else."""
    x, v = tf.constant([1.0, 2.0]), tf.Variable(1.0)

    def step():
        with tfdist.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            assert isinstance(tape, tf.GradientTape)
            tape.watch(x)
            target = share() * x * v
            with tape.stop_recording():
                hidden = 1000.0 * x
            assert [w.ref() for w in tape.watched_variables()] == [v.ref()]
        return tape.gradient(hidden, x), tape.gradient(target, x), tape.jacobian(target, x)

    nothing, gradient, jacobian = wrap(step)()
    assert nothing is None
    np.testing.assert_array_equal(gradient, np.full(2, mean(world), "float32"))
    np.testing.assert_array_equal(jacobian, share() * np.eye(2))  # this rank's own


@pytest.mark.ranks(2)
def test_reset_and_batch_jacobian(world):
    x = tf.constant([[1.0], [3.0]])
    with tfdist.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        tape.watch(x)
        first = x * 2.0
        tape.reset()
        tape.watch(x)
        second = share() * x * x
    assert tape.gradient(first, x) is None
    np.testing.assert_array_equal(tape.batch_jacobian(second, x), share() * np.float32([[[2.0]], [[6.0]]]))


class CountingTape(tf.GradientTape):
    count = 0

    def watch(self, tensor):
        self.count += 1
        super().watch(tensor)

    def report(self):
        return f"watched {self.count}"


@pytest.mark.ranks(2)
def test_a_tape_of_the_users_own(world):
    with tfdist.DistributedGradientTape(CountingTape()) as tape:
        x = tf.constant(2.0)
        tape.watch(x)
        target = share() * x
    assert tape.report() == "watched 1"
    assert float(tape.gradient(target, x)) == mean(world)
    with pytest.raises(AttributeError, match="nothing"):
        _ = tape.nothing
    with pytest.raises(RuntimeError, match="non-persistent"):
        tape.gradient(target, x)


@pytest.mark.ranks(1)
def test_every_method_of_a_tape_is_answered_by_the_wrapped_one(world):
    """A method that TensorFlow adds would otherwise act on a tape that records nothing."""
    methods = {name for name in vars(tf.GradientTape) if not name.startswith("_")}
    assert "gradient" in methods
    own = type(tfdist.DistributedGradientTape(tf.GradientTape()))
    assert methods - set(vars(own)) == set()


@SIZES
@MODES
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("arguments", [{}, {"op": tfdist.Sum}], ids=["average", "sum"])
def test_local_sources(world, arguments, scaled, wrap):
    """Variables of both kinds, and a tensor, anywhere in the list; divided by the number of ranks whatever the op."""
    shared, plain, keras_variable = tf.Variable(1.0), tf.Variable([1.0, 1.0]), keras.Variable(1.0)
    table, tensor, unused = tf.Variable(tf.zeros([3, 1])), tf.constant(1.0), tf.Variable(1.0)

    def step():
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            target = share() * (
                shared + tf.reduce_sum(plain) + keras_variable + tensor + tf.reduce_sum(tf.gather(table, [1]))
            )
        tape = tfdist.DistributedGradientTape(tape, scale_local_gradients=scaled, **arguments)
        for source in (plain, keras_variable.value, tensor, table, unused):
            tape.register_local_source(source)
        return tape.gradient(target, [plain, keras_variable, shared, tensor, table, unused])

    *local, slices, unused_gradient = wrap(step)()
    assert float(local.pop(2)) == (mean(world) * world if arguments else mean(world))
    expected = share() / world if scaled else share()
    assert_close(local, [np.full(2, expected), expected, expected], relative=1e-6)
    assert isinstance(slices, tf.IndexedSlices)
    assert_close([slices.values], [np.full((1, 1), expected)], relative=1e-6)
    assert unused_gradient is None


@SIZES
@MODES
@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_local_layers(world, built, wrap):
    """Local layers of different shapes, and shared variables after them in the list."""
    layer, shared = keras.layers.Dense(tfdist.rank() + 1, kernel_initializer="ones"), tf.Variable(1.0)
    x = tf.constant([[1.0, 2.0]])
    if built:
        layer.build(x.shape)

    def step():
        tape = tfdist.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[layer])
        with tape:
            target = share() * (tf.reduce_sum(layer(x)) + shared)
        return tape.gradient(target, [*layer.trainable_variables, shared])

    if not built:
        step()
    kernel, bias, gradient = wrap(step)()
    assert float(gradient) == mean(world)
    expected = share() / world
    units = tfdist.rank() + 1
    assert_close([kernel, bias], [np.full((2, units), [[expected], [2 * expected]]), np.full(units, expected)], 1e-6)


@pytest.mark.ranks(2, 3)
def test_ranks_with_other_numbers_of_local_variables(world):
    """Rank 0 has none; names and positions of the shared ones agree all the same."""
    local = [tf.Variable(float(index)) for index in range(tfdist.rank())]
    shared = tf.Variable(1.0, name="shared")
    with tf.GradientTape() as tape:
        target = share() * (shared + sum(local))
    tape = tfdist.PartialDistributedGradientTape(tape)
    for variable in local:
        tape.register_local_source(variable)
    *own, gradient = tape.gradient(target, [*local, shared])
    assert float(gradient) == mean(world)
    assert_close(own, [share() / world] * len(local), relative=1e-6)


@pytest.mark.ranks(2, 3)
def test_generic_names(world):
    """Variables that are called otherwise on each rank are told apart, unless names are left out."""
    v = tf.Variable(1.0, name=f"of_rank_{'abc'[tfdist.rank()]}")

    def gradient(**arguments):
        with tf.GradientTape() as tape:
            target = share() * v
        return tfdist.DistributedGradientTape(tape).gradient(target, [v], **arguments)[0]

    with pytest.raises(tfdist.errors.MismatchError, match="of_rank_a"):
        gradient()
    assert float(gradient(use_generic_names=True)) == mean(world)


@pytest.mark.ranks(2, 3)
def test_a_missing_gradient_is_the_same_error_everywhere(world):
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        target = a + b if tfdist.rank() == 0 else a
    with pytest.raises(tfdist.errors.MismatchError) as caught:
        tfdist.DistributedGradientTape(tape).gradient(target, [a, b])
    assert len(set(tfdist.allgather_object(str(caught.value), name="texts"))) == 1


def ragged():
    x = tf.ragged.constant([[1.0, 2.0], [3.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        target = x * x
    tfdist.DistributedGradientTape(tape).gradient(target, x)


def wrap_again():
    tfdist.DistributedGradientTape(tfdist.DistributedGradientTape(tf.GradientTape()))


def with_arguments(**arguments):
    return lambda: tfdist.PartialDistributedGradientTape(tf.GradientTape(), **arguments)


REFUSED = {
    "no tape": (lambda: tfdist.DistributedGradientTape(lambda: None), "must be a tf.GradientTape"),
    "wrapped": (wrap_again, "wrap it only once"),
    "ragged": (ragged, "RaggedTensor"),
    "device": (with_arguments(device_dense="/gpu:0"), "device_dense"),
    "sparse device": (with_arguments(device_sparse="/gpu:0"), "device_sparse"),
    "op": (with_arguments(op=tfdist.Min), "op=Average or op=Sum"),
    "predivided sum": (with_arguments(op=tfdist.Sum, gradient_predivide_factor=2.0), "gradient_predivide_factor"),
    "compression": (with_arguments(compression="zip"), "received 'zip'"),
    "groups": (with_arguments(num_groups=2, groups=[]), "not both"),
    "layers": (with_arguments(local_layers=["dense"]), "Keras layer"),
    "source": (lambda: with_arguments()().register_local_source([tf.Variable(1.0)]), "keras.Variable"),
}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused(world, case):
    call, expected = REFUSED[case]
    with pytest.raises(tfdist.errors.ConfigError, match=expected):
        call()


STEPS, BATCH = 6, 4


def data_of(rank):
    generator = np.random.default_rng(100 + rank)
    x = generator.normal(size=(STEPS, BATCH, 3)).astype("float32")
    return x, np.sin(x[..., :1] + rank).astype("float32")


def new_model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *layers])


def train(model, optimizer, batches, wrap, make_tape=lambda tape: tape):
    """An ordinary training loop; BatchNormalization runs in inference mode, so that batches may be put together."""
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=False) - y))
        gradients = make_tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    compiled = wrap(step)
    for x, y in batches:
        compiled(tf.constant(x), tf.constant(y))
    return model.get_weights()


def grouped_by_layer(tape, model):
    return tfdist.DistributedGradientTape(tape, groups=[layer.trainable_variables for layer in model.layers[:2]])


TAPES = {
    "plain": lambda tape, model: tfdist.DistributedGradientTape(tape),
    "three_groups": lambda tape, model: tfdist.DistributedGradientTape(tape, num_groups=3),
    "by_layer": grouped_by_layer,
}


@pytest.mark.ranks(1, 2, 3)
@MODES
@pytest.mark.parametrize("tape", TAPES)
def test_parity_of_a_training_loop(world, tape, wrap):
    """Equal to one process on the batches of all ranks together, with momentum and a global norm."""

    def make():
        return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)

    model = new_model()
    weights = train(model, make(), zip(*data_of(tfdist.rank()), strict=True), wrap, lambda t: TAPES[tape](t, model))
    assert_identical_on_ranks(weights)
    parts = [data_of(rank) for rank in range(world)]
    together = [np.concatenate([part[kind] for part in parts], axis=1) for kind in (0, 1)]
    if tfdist.rank() == 0:
        assert_close(weights, train(new_model(), make(), zip(*together, strict=True), tf.function))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("named", [True, False])
def test_loss_scaling_of_local_sources_is_refused(world, named):
    shared, local = (keras.Variable([1.0], name=name) for name in ("shared", "local"))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(shared.value) * tf.reduce_sum(local.value))
    tape = tfdist.DistributedGradientTape(tape)
    tape.register_local_source(local)
    sources = [shared.value, local.value]
    optimizer.build([shared, local])
    gradients, variables = tape.gradient(loss, sources), [[shared, local]] if named else []
    if world == 1:
        optimizer.apply(gradients, *variables)
    else:
        with pytest.raises(tfdist.errors.ConfigError, match=r"that of .* is only this rank's .*PartialDistributed"):
            optimizer.apply(gradients, *variables)
