"""Horovod's names: positional calls in Horovod's order, what is refused, and models that are loaded to train on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.keras as hvd_keras
import tfdist.tensorflow as hvd
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

SIZES = pytest.mark.ranks(1, 2, 3)
LOADING = pytest.mark.ranks(1, 2)
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
ROWS, FEATURES = 6, 4
FP16 = hvd.Compression.fp16
EVERYBODY = hvd.global_process_set
NOT_IN_USE = hvd.ProcessSet([0])


def mine():
    """Six rows, different on every rank; small integers, exact in 16 bits."""
    return rows_of(tfdist.rank())


def rows_of(rank):
    return tf.range(ROWS, dtype=tf.float32) + 10.0 * rank


def total(world):
    return np.sum([rows_of(rank) for rank in range(world)], axis=0)


def part(array, world):
    return np.split(array, world)[tfdist.rank()]


# name -> (Horovod's positional call, the expected result). 2.0 and 4.0 are the factors: one of them lost would show.
CALLS = {
    "allreduce": (
        lambda x, group: hvd.allreduce(x, None, "", "", FP16, hvd.Sum, 2.0, 4.0, "x", group, True),
        lambda world: 8 * total(world),
    ),
    "grouped_allreduce": (
        lambda x, group: hvd.grouped_allreduce([x], None, "", "", FP16, hvd.Sum, 2.0, 4.0, group, True, "x")[0],
        lambda world: 8 * total(world),
    ),
    "allgather": (
        lambda x, group: hvd.allgather(x, "x", True, group),
        lambda world: np.concatenate([rows_of(rank) for rank in range(world)]),
    ),
    "grouped_allgather": (
        lambda x, group: hvd.grouped_allgather([x, x + 1], "x", True, group)[1],
        lambda world: np.concatenate([rows_of(rank) + 1 for rank in range(world)]),
    ),
    "broadcast": (
        lambda x, group: hvd.broadcast(x, tfdist.size() - 1, "x", True, group),
        lambda world: rows_of(world - 1),
    ),
    "alltoall": (
        lambda x, group: hvd.alltoall(x, None, "x", True, group),
        lambda world: np.concatenate([part(rows_of(rank).numpy(), world) for rank in range(world)]),
    ),
    "reducescatter": (
        lambda x, group: hvd.reducescatter(x, "", FP16, hvd.Sum, "x", group, True, 2.0, 4.0),
        lambda world: part(8 * total(world), world),
    ),
    "grouped_reducescatter": (
        lambda x, group: hvd.grouped_reducescatter([x, -x], "", FP16, hvd.Sum, group, 2.0, 4.0)[1],
        lambda world: part(-8 * total(world), world),
    ),
}
CALL = pytest.mark.parametrize("name", CALLS)


@SIZES
@MODES
@CALL
def test_positional_arguments_are_in_horovods_order(world, name, wrap):
    call, expected = CALLS[name]
    assert np.array_equal(wrap(lambda x: call(x, EVERYBODY))(mine()), expected(world))


@pytest.mark.ranks(1, 2)
@CALL
def test_the_process_set_is_used(world, name):
    with pytest.raises(tfdist.errors.NotInitializedError, match="is not in use"):
        CALLS[name][0](mine(), NOT_IN_USE)


@SIZES
def test_alltoall_with_splits(world):
    """Rank r sends r + 1 rows to every rank."""
    count = tfdist.rank() + 1
    received, counts = hvd.alltoall(tf.fill([count * world], float(count)), [count] * world, "x", False, EVERYBODY)
    assert np.array_equal(received, np.repeat(np.arange(1.0, world + 1), np.arange(1, world + 1)))
    assert counts.numpy().tolist() == list(range(1, world + 1))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("flag", [NOT_IN_USE, None, 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda flag: hvd.allreduce(1.0, ignore_name_scope=flag),
        lambda flag: hvd.grouped_allreduce([1.0], ignore_name_scope=flag),
        lambda flag: hvd.allgather([1.0], "x", flag),
        lambda flag: hvd.grouped_allgather([[1.0]], "x", flag),
        lambda flag: hvd.broadcast(1.0, 0, "x", flag),
        lambda flag: hvd.alltoall([1.0], None, "x", flag),
        lambda flag: hvd.reducescatter([1.0], ignore_name_scope=flag),
    ],
)
def test_a_process_set_in_the_place_of_a_flag_is_refused(world, call, flag):
    with pytest.raises(tfdist.errors.ConfigError, match=r"ignore_name_scope must be True or False.*process_set=pair"):
        call(flag)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), use_locking=True), "use_locking=True"),
        (lambda: hvd.broadcast_object(1, session=object()), "session="),
        (lambda: hvd.broadcast_object_fn(session=object()), "session="),
        (lambda: hvd.allgather_object(1, session=object()), "session="),
        (lambda: hvd.reducescatter([1.0], "/gpu:0"), "device_dense='/gpu:0'"),
        (lambda: hvd.grouped_reducescatter([[1.0]], "/gpu:0"), "device_dense='/gpu:0'"),
        (lambda: hvd.allreduce([1.0], None, "", "/cpu:0"), "device_sparse='/cpu:0'"),
        (lambda: hvd_keras.load_model("none.keras", legacy_opts=True), "legacy_opts=True"),
    ],
)
def test_what_cannot_be_honoured_is_refused(world, call, text):
    with pytest.raises(tfdist.errors.ConfigError, match=text):
        call()


@SIZES
@MODES
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("make", [tf.Variable, keras.Variable], ids=["tf", "keras"])
def test_broadcast_variables(world, make, inplace, wrap):
    """Also variables of other dtypes; none is replaced."""
    variables = [make(mine()), make(np.full(2, tfdist.rank()), dtype="int64"), make(tfdist.rank() == world - 1)]
    wrap(lambda: hvd.broadcast_variables(variables, world - 1, EVERYBODY, inplace))()
    values = [tf.convert_to_tensor(variable) for variable in variables]
    assert [value.dtype.name for value in values] == ["float32", "int64", "bool"]
    assert np.array_equal(values[0], rows_of(world - 1))
    assert values[1].numpy().tolist() == [world - 1] * 2
    assert bool(values[2])


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("inplace", [True, False])
def test_broadcast_variables_in_a_process_set(world, inplace):
    with pytest.raises(tfdist.errors.NotInitializedError, match="is not in use"):
        hvd.broadcast_variables([tf.Variable(1.0)], 0, NOT_IN_USE, inplace)


@SIZES
def test_objects(world):
    assert hvd.broadcast_object({"rank": tfdist.rank()}, world - 1, None, "x", EVERYBODY) == {"rank": world - 1}
    assert hvd.broadcast_object_fn(world - 1, None, "x", EVERYBODY)(tfdist.rank()) == world - 1
    assert hvd.allgather_object("a" * tfdist.rank(), None, "x", EVERYBODY) == ["a" * rank for rank in range(world)]


@pytest.mark.ranks(1, 2)
def test_objects_in_a_process_set(world):
    for call in (
        lambda: hvd.broadcast_object(1, 0, None, "x", NOT_IN_USE),
        lambda: hvd.broadcast_object_fn(0, None, "x", NOT_IN_USE)(1),
        lambda: hvd.allgather_object(1, None, "x", NOT_IN_USE),
    ):
        with pytest.raises(tfdist.errors.NotInitializedError, match="is not in use"):
            call()


@SIZES
@MODES
def test_collectives_of_keras(world, wrap):
    def all_of(x):
        return (
            hvd_keras.allreduce(x, "x", None, 2.0, 4.0, hvd_keras.Sum, FP16),
            hvd_keras.allreduce(x, "x", False),
            hvd_keras.allreduce(x, "x", True),
            hvd_keras.allgather(x, "x"),
            hvd_keras.broadcast(x, world - 1, "x"),
            hvd_keras.reducescatter(x, "x", hvd_keras.Sum),
        )

    scaled, summed, mean, gathered, sent, scattered = wrap(all_of)(mine())
    assert np.array_equal(scaled, 8 * total(world))
    assert np.array_equal(summed, total(world))
    assert np.allclose(mean, total(world) / world, rtol=1e-6)
    assert np.array_equal(gathered, np.concatenate([rows_of(rank) for rank in range(world)]))
    assert np.array_equal(sent, rows_of(world - 1))
    assert np.array_equal(scattered, part(total(world), world))


def updates(optimizer, variable, gradients):
    """The variable after each of these gradients."""
    values = []
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        values.append(float(variable))
    return values


@SIZES
def test_order_of_arguments_of_the_optimizer(world):
    """An update every second step, of the sum over steps and ranks."""
    variable = tf.Variable(0.0)
    plain = keras.optimizers.SGD(1.0)
    optimizer = hvd.DistributedOptimizer(plain, "own", False, "", "", hvd.Compression.none, False, 2, hvd.Sum)
    assert optimizer.name == "own"
    optimizer.build([variable])
    one = tfdist.rank() + 1.0
    whole = world * (world + 1) / 2
    assert updates(optimizer, variable, [one, 3 * one]) == [0.0, -4 * whole]


@SIZES
def test_order_of_arguments_of_the_partial_optimizer(world):
    local, shared = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    for layer in (local, shared):
        layer.build((None, 1))
        layer.kernel.assign([[0.0]])
    optimizer = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), "own", "", "", FP16, False, 1.0, hvd_keras.Sum, None, EVERYBODY, [local], False
    )
    assert optimizer.name == "own"
    one = tfdist.rank() + 1.0
    optimizer.apply_gradients([(tf.constant([[one]]), layer.kernel) for layer in (local, shared)])
    assert np.asarray(local.kernel).item() == -one
    assert np.asarray(shared.kernel).item() == -world * (world + 1) / 2


class Decaying(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


class Doubling(keras.layers.Layer):
    """A layer that Keras does not know."""

    def call(self, inputs):
        return 2 * inputs


def trained(optimizer, *layers, **options):
    """A model after two distributed steps on this rank's data; every rank has the same weights."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(3)])
    model.compile(hvd_keras.DistributedOptimizer(optimizer, **options), loss="mse")
    model.fit(*data(0), batch_size=5, verbose=0, shuffle=False)
    return model


def data(seed):
    generator = np.random.default_rng(100 * seed + tfdist.rank())
    return generator.normal(size=(10, FEATURES)).astype("float32"), generator.normal(size=(10, 3)).astype("float32")


def saved(model, folder):
    path = folder / "model.keras"
    if tfdist.rank() == 0:
        model.save(path)
    tfdist.barrier()
    return path


@LOADING
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_load_model_trains_on_where_it_was_saved(world, kind, shared_tmp_path):
    """The next steps are those of the model that was never saved: the state is there, the gradients are reduced."""
    makers = {"momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9), "adam": lambda: keras.optimizers.Adam(0.01)}
    model = trained(makers[kind]())
    again = hvd_keras.load_model(saved(model, shared_tmp_path))
    assert tfdist.optimizer.is_distributed(again.optimizer)
    assert int(again.optimizer.iterations.numpy()) == 2
    state = [np.asarray(variable) for variable in again.optimizer.variables]
    assert_close(state, [np.asarray(variable) for variable in model.optimizer.variables], relative=0)
    for each in (model, again):
        each.fit(*data(1), batch_size=5, verbose=0, shuffle=False)
    assert_close(again.get_weights(), model.get_weights(), relative=0)
    assert_identical_on_ranks(again.get_weights(), "weights")


@LOADING
@pytest.mark.parametrize("averages", [False, True, None])
def test_load_model_with_accumulated_gradients(world, averages, shared_tmp_path, warnings_of_tfdist):
    """The file does not know whether an update takes their sum or their mean."""
    passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": averages is not False}
    model = trained(keras.optimizers.SGD(0.05, momentum=0.9), **passes)
    again = hvd_keras.load_model(saved(model, shared_tmp_path), average_aggregated_gradients=averages)
    for each in (model, again):
        each.fit(*data(1), batch_size=5, verbose=0, shuffle=False)
    assert_close(again.get_weights(), model.get_weights(), relative=0)
    told = [line for line in warnings_of_tfdist if "accumulates the gradients of 2 steps" in line]
    assert len(told) == (averages is None and tfdist.rank() == 0)


@LOADING
def test_load_model_with_an_optimizer_and_a_layer_of_ones_own(world, shared_tmp_path):
    path = saved(trained(Decaying(0.05), Doubling()), shared_tmp_path)
    for missing in ({"custom_optimizers": [Decaying]}, {"custom_objects": {"Doubling": Doubling}}):
        with pytest.raises(TypeError, match="Could not locate class"):
            hvd_keras.load_model(path, **missing)
    again = hvd_keras.load_model(path, [Decaying], {"Doubling": Doubling})
    assert isinstance(again.optimizer, Decaying)
    assert isinstance(again.layers[0], Doubling)
    again.fit(*data(1), batch_size=5, verbose=0)
    assert_identical_on_ranks(again.get_weights(), "weights")


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("compression", "step"), [("none", 1 + 2.0**-12), ("fp16", 1.0)])
def test_load_model_with_compression(world, compression, step, shared_tmp_path):
    """1 + 2^-12 has no place in 16 bits."""
    path = saved(trained(keras.optimizers.SGD(1.0)), shared_tmp_path)
    again = hvd_keras.load_model(path, compression=hvd_keras.Compression[compression])
    bias = again.layers[-1].bias
    before = np.asarray(bias).astype("float64")
    bias.assign(tf.zeros_like(before))
    gradients = [(tf.zeros_like(variable), variable) for variable in again.trainable_variables[:-1]]
    again.optimizer.apply_gradients([*gradients, (tf.fill([3], 1 + 2.0**-12), bias)])
    assert np.asarray(bias).tolist() == [-step] * 3


@LOADING
def test_load_model_without_an_optimizer(world, shared_tmp_path):
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3)])
    again = hvd_keras.load_model(saved(model, shared_tmp_path))
    assert getattr(again, "optimizer", None) is None
    weights = tfdist.broadcast_object(model.get_weights(), 0)
    assert_close(again.get_weights(), weights, relative=0)


@pytest.mark.ranks(1)
def test_load_model_with_a_compression_that_nobody_knows(world):
    with pytest.raises(tfdist.errors.ConfigError, match="compression must be one of none, fp16, bf16"):
        hvd_keras.load_model("none.keras", compression="zip")
