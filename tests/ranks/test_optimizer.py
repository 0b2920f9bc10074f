"""The distributed optimizer beyond parity: missing and sparse gradients, settings, groups, accumulation, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.ops import allreduce
from tfdist.testing.parity import assert_close, assert_identical_on_ranks


def variables(*shapes):
    return [tf.Variable(tf.ones(shape), name=f"v{index}") for index, shape in enumerate(shapes)]


@pytest.mark.ranks(1, 2, 3, 4)
def test_none_gradients_are_left_out(world):
    first, second, third = variables([3], [2], [2, 2])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    share = tfdist.rank() + 1.0
    gradients = [tf.fill([3], share), None, tf.fill([2, 2], 10 * share)]
    optimizer.apply_gradients(zip(gradients, [first, second, third], strict=True))
    mean = (world + 1) / 2
    assert np.array_equal(first, np.full(3, 1 - mean, "float32"))
    assert np.array_equal(second, np.ones(2, "float32"))
    assert np.array_equal(third, np.full((2, 2), 1 - 10 * mean, "float32"))


def embedding_parts(world, sparse_as_dense, compiled):
    table = tf.Variable(tf.zeros([6, 2]))
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=sparse_as_dense)
    optimizer.build([table])
    rows = {rank: ([rank, 5, 5][: rank % 3 + 1], rank + 1.0) for rank in range(world)}

    def step():
        indices, value = rows[tfdist.rank()]
        slices = tf.IndexedSlices(tf.fill([len(indices), 2], value), tf.constant(indices), tf.constant([6, 2]))
        optimizer.apply_gradients([(slices, table)])

    (tf.function(step) if compiled else step)()
    expected = np.zeros((6, 2), "float32")
    for indices, value in rows.values():
        for index in indices:
            expected[index] -= value / world
    return table, expected


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["gathered", "dense"])
def test_indexed_slices(world, sparse_as_dense, compiled):
    """Ranks touch different numbers of rows, some of them the same and one of them twice."""
    table, expected = embedding_parts(world, sparse_as_dense, compiled)
    assert_identical_on_ranks([table])
    assert_close([table], [expected], relative=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.5])
def test_predivide_leaves_the_average(world, factor):
    (variable,) = variables([4])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), gradient_predivide_factor=factor)
    optimizer.apply_gradients([(tf.fill([4], float(tfdist.rank())), variable)])
    assert_close([variable], [np.full(4, 1 - (world - 1) / 2)], relative=1e-6)


def test_several_observers_see_the_gradients_of_an_update(world):
    (variable,) = variables([2])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    seen = []

    def note(what):
        return lambda own, mean, factor: seen.append((what, own[0].numpy()[0], mean[0].numpy()[0], factor))

    norm = note("norm")
    assert tfdist.optimizer.observe(optimizer, "norm", note("an earlier norm"))
    assert tfdist.optimizer.observe(optimizer, "norm", norm)
    assert tfdist.optimizer.observe(optimizer, "sign", note("sign"))
    assert not tfdist.optimizer.observe(optimizer, "norm", norm)
    optimizer.apply_gradients([(tf.fill([2], tfdist.rank() + 1.0), variable)])
    assert seen == [(what, tfdist.rank() + 1.0, (world + 1) / 2, 1.0) for what in ("norm", "sign")]


def test_sum(world):
    (variable,) = variables([4])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tfdist.Sum)
    optimizer.apply_gradients([(tf.fill([4], tfdist.rank() + 1.0), variable)])
    assert np.array_equal(variable, np.full(4, 1 - world * (world + 1) / 2, "float32"))


def test_a_rank_without_a_gradient_is_named(world):
    """One rank has a None where the others have a gradient: the same error everywhere."""
    first, second = variables([3], [2])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    gradients = [tf.ones([3]), None if tfdist.rank() == 0 else tf.ones([2])]
    with pytest.raises(tfdist.errors.MismatchError) as caught:
        optimizer.apply_gradients(zip(gradients, [first, second], strict=True))
    texts = tfdist.allgather_object(str(caught.value), name="texts")
    assert len(set(texts)) == 1
    assert "rank 0" in texts[0]


def test_saved_model_is_that_of_one_process(shared_tmp_path):
    """The scaled rate stays in memory; the file has the class, configuration and rate of the plain optimizer."""
    path = shared_tmp_path / f"rank{tfdist.rank()}.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    tfdist.optimizer.distribute(model.optimizer)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    tfdist.optimizer.scale_learning_rate(model.optimizer, tfdist.size())
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * tfdist.size())
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.1)
    assert_close(loaded.optimizer.variables[2:], model.optimizer.variables[2:], relative=0)
    assert loaded.optimizer.get_config()["learning_rate"] == pytest.approx(0.1)


@pytest.mark.parametrize("scaled_loss", [False, True])
def test_hdf5_file_is_that_of_one_process(world, scaled_loss, shared_tmp_path):
    """Keras writes it without asking the optimizer."""
    path = shared_tmp_path / f"rank{tfdist.rank()}.h5"
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    plain = keras.optimizers.Adam(0.1)
    model.compile(
        keras.optimizers.LossScaleOptimizer(plain) if scaled_loss else plain, loss=keras.losses.MeanSquaredError()
    )
    tfdist.optimizer.distribute(model.optimizer)
    tfdist.optimizer.scale_learning_rate(model.optimizer, world)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.save(path)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * world)
    loaded = keras.models.load_model(path)
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.1)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("scheduled", [False, True])
def test_checkpoint_of_tensorflow_has_the_rate_of_one_process(world, scheduled, shared_tmp_path):
    """However often a training goes on from one: the rate is scaled once."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1.0) if scheduled else 0.1
    optimizer = tfdist.optimizer.distribute(keras.optimizers.SGD(rate))
    optimizer.build([tf.Variable([1.0])])
    path = str(shared_tmp_path / f"rank{tfdist.rank()}")
    for _ in range(3):
        tfdist.optimizer.scale_learning_rate(optimizer, world)
        saved = tf.train.Checkpoint(optimizer=optimizer).save(path)
        tf.train.Checkpoint(optimizer=optimizer).restore(saved).assert_consumed()
        assert float(optimizer.learning_rate) == pytest.approx(0.1 * world)
        plain = keras.optimizers.SGD(rate)
        plain.build([tf.Variable([1.0])])
        tf.train.Checkpoint(optimizer=plain).restore(saved).assert_consumed()
        assert float(plain.learning_rate) == pytest.approx(0.1)
        optimizer = tfdist.optimizer.distribute(plain)


@keras.saving.register_keras_serializable()
class Halving(keras.optimizers.SGD):
    """An optimizer whose configuration lacks what it was made with."""

    def __init__(self, *args, divisor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.divisor = divisor

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / self.divisor, variable, learning_rate)


class Scheduled(keras.optimizers.schedules.LearningRateSchedule):
    """Has no configuration."""

    def __call__(self, step):
        return 0.5


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_copy_of_what_a_configuration_does_not_show(world, scaled):
    def updated(optimizer):
        weights = [tf.Variable([1.0], name=name) for name in ("kernel", "bias")]
        optimizer.build(weights)
        optimizer.apply_gradients([(tf.constant([0.0]), weight) for weight in weights])
        return [float(weight[0]) for weight in weights]

    def wrapped(optimizer):
        return keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer

    decaying = keras.optimizers.SGD(0.5, weight_decay=0.5)
    decaying.exclude_from_weight_decay(var_names=["bias"])
    assert updated(tfdist.DistributedOptimizer(wrapped(decaying))) == [0.75, 1.0]

    variable = tf.Variable([8.0])
    optimizer = tfdist.DistributedOptimizer(wrapped(Halving(1.0, divisor=2.0)))
    (optimizer.inner_optimizer if scaled else optimizer).build([variable])
    (optimizer.inner_optimizer if scaled else optimizer).apply_gradients([(tf.constant([4.0]), variable)])
    assert variable.numpy() == [6.0]

    with pytest.raises(tfdist.errors.ConfigError, match=r"copied by its get_config .* which failed: NotImplemented"):
        tfdist.DistributedOptimizer(wrapped(keras.optimizers.SGD(Scheduled())))


MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])


@pytest.fixture
def collectives(monkeypatch):
    """The names of the tensors of each fused collective of this test, in the order of the calls."""
    calls = []
    real = allreduce.FusedAllreduce.start

    def recording(how, tensors):
        calls.append([name.partition(":")[2] for name in how.tensor_names])
        return real(how, tensors)

    monkeypatch.setattr(allreduce.FusedAllreduce, "start", recording)
    return calls


def grouped(v):
    return {
        "one": ({}, [["v0", "v1", "v2", "v4"]]),
        "two": ({"num_groups": 2}, [["v2", "v4"], ["v0", "v1"]]),
        "three": ({"groups": 3}, [["v4"], ["v2"], ["v0", "v1"]]),
        "many": ({"num_groups": 9}, [["v4"], ["v2"], ["v1"], ["v0"]]),
        "buckets": ({}, [["v2", "v4"], ["v1"], ["v0"]]),
        "lists": ({"groups": [[v[4], v[0]], [v[5]], [v[1]]]}, [["v4", "v0"], ["v1"], ["v2"]]),
    }


@pytest.mark.ranks(1, 2, 3, 4)
@MODES
@pytest.mark.parametrize("case", ["one", "two", "three", "many", "buckets", "lists"])
def test_groups_are_one_collective_each(world, case, wrap, collectives, monkeypatch):
    """Of six variables one has no gradient and one a sparse one, which is gathered by itself."""
    if case == "buckets":
        monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "12")  # three numbers
        monkeypatch.setenv("TFDIST_COMMUNICATION_THREAD", "1")  # buckets are for reductions that overlap
    v = variables([2], [3], [], [4], [1], [2, 1])
    arguments, expected = grouped(v)[case]
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), **arguments)
    optimizer.build(v)
    share = tfdist.rank() + 1.0

    def step():
        gradients = [tf.fill(variable.shape, share * (index + 1)) for index, variable in enumerate(v)]
        gradients[3] = None
        gradients[5] = tf.IndexedSlices(tf.fill([1, 1], share * 6), tf.constant([1]), tf.constant([2, 1]))
        optimizer.apply_gradients(zip(gradients, v, strict=True))

    wrap(step)()
    assert collectives == expected
    mean = (world + 1) / 2
    for index, variable in enumerate(v):
        reduced = np.full(variable.shape, 0.0 if index == 3 else mean * (index + 1))
        if index == 5:
            reduced[0] = 0.0
        assert_close([variable], [1 - reduced], relative=1e-6)


@pytest.mark.ranks(1, 2)
def test_groups_of_another_model_are_refused(world):
    (mine,), (other,) = variables([2]), variables([2])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[other]])
    with pytest.raises(tfdist.errors.ConfigError, match="groups contains none"):
        optimizer.apply_gradients([(tf.ones([2]), mine)])


@pytest.mark.ranks(1, 2, 3, 4)
@MODES
@pytest.mark.parametrize("mean_of_passes", [False, True], ids=["sum", "mean"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss_scale"])
def test_backward_passes_are_one_reduction(world, scaled, mean_of_passes, wrap, collectives):
    """Gradients of pass p on rank r are p * (r + 1): nothing changes before the fourth, then their sum or mean."""
    (variable,) = variables([2])
    plain = keras.optimizers.SGD(1.0)
    scale = 16.0 if scaled else 1.0
    optimizer = tfdist.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(plain, initial_scale=scale) if scaled else plain,
        backward_passes_per_step=4,
        average_aggregated_gradients=mean_of_passes,
    )
    optimizer.build([variable])
    assert plain.gradient_accumulation_steps is None
    gradient = tf.Variable(tf.zeros([2]))
    step = wrap(lambda: optimizer.apply_gradients([(gradient * scale, variable)]))
    for index in range(10):
        gradient.assign(tf.fill([2], (index + 1) * (tfdist.rank() + 1.0)))
        step()
        done = sum(range(1, 4 * ((index + 1) // 4) + 1)) / (4 if mean_of_passes else 1)
        np.testing.assert_array_equal(variable, np.full(2, 1 - done * (world + 1) / 2, "float32"))
        assert int(optimizer.iterations) == (index + 1) // 4
    assert collectives == [["v0"]] * (1 if wrap is tf.function else 2)


REFUSED = {
    "zero passes": ({"backward_passes_per_step": 0}, "backward_passes_per_step must be a number, 1 or more"),
    "half a pass": ({"backward_passes_per_step": 1.5}, "received 1.5"),
    "a flag": ({"backward_passes_per_step": True}, "received True"),
    "both groups": ({"num_groups": 2, "groups": 2}, "not both"),
    "no lists": ({"groups": ["v0"]}, "list of lists"),
    "predivided sum": ({"op": tfdist.Sum, "gradient_predivide_factor": 2.0}, "needs op=Average"),
    "no predivision": ({"gradient_predivide_factor": 0}, "more than 0"),
    "op": ({"op": tfdist.Max}, "op=Average or op=Sum"),
    "device": ({"device_sparse": "/cpu:0"}, "device_sparse"),
}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused(world, case):
    arguments, expected = REFUSED[case]
    with pytest.raises(tfdist.errors.ConfigError, match=expected):
        tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), **arguments)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss_scale"])
def test_passes_on_top_of_accumulation_are_refused(world, scaled):
    """An optimizer that accumulates by itself keeps doing so: the mean, as Keras has it."""
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(tfdist.errors.ConfigError, match=r"gradient_accumulation_steps=3.*backward_passes_per_step=2"):
        tfdist.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    (variable,) = variables([])
    distributed = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    for value in (2.0, 6.0):
        distributed.apply_gradients([(tf.constant(value), variable)])
    assert float(variable) == 1.0 - 4.0


STEPS, BATCH = 9, 4


def data_of(rank):
    generator = np.random.default_rng(100 + rank)
    x = generator.normal(size=(STEPS, BATCH, 3)).astype("float32")
    return x, np.sin(x[..., :1] + rank).astype("float32")


def fit(optimizer, parts, scale=1.0):
    """Weights after training on batches that hold those of all `parts`, one after the other."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, loss="mse", loss_weights=[scale])
    x, y = (np.concatenate([part[kind] for part in parts], axis=1) for kind in (0, 1))
    size = len(parts) * BATCH
    model.fit(x.reshape(STEPS * size, -1), y.reshape(STEPS * size, -1), batch_size=size, shuffle=False, verbose=0)
    return model.get_weights()


OPTIMIZERS = {
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.2, **kw),
    "adam": lambda **kw: keras.optimizers.Adam(0.005, epsilon=0.01, **kw),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("mean_of_passes", [False, True], ids=["sum", "mean"])
@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parity_of_backward_passes(world, name, passes, mean_of_passes):
    """One process that accumulates, and whose loss is so many times as large where gradients are summed."""
    distributed = tfdist.DistributedOptimizer(
        OPTIMIZERS[name](), backward_passes_per_step=passes, average_aggregated_gradients=mean_of_passes
    )
    weights = fit(distributed, [data_of(tfdist.rank())])
    assert_identical_on_ranks(weights)
    if tfdist.rank() == 0:
        reference = OPTIMIZERS[name](gradient_accumulation_steps=passes)
        parts = [data_of(rank) for rank in range(world)]
        assert_close(weights, fit(reference, parts, 1.0 if mean_of_passes else float(passes)))


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("arguments", [{"num_groups": 3}, {"op": tfdist.Sum}, {"gradient_predivide_factor": 2.0}])
def test_parity_of_settings(world, arguments):
    """Groups and predivision change nothing; a sum is the mean of a loss that is so many times as large."""
    weights = fit(tfdist.DistributedOptimizer(OPTIMIZERS["momentum"](), **arguments), [data_of(tfdist.rank())])
    assert_identical_on_ranks(weights)
    if tfdist.rank() == 0:
        parts = [data_of(rank) for rank in range(world)]
        assert_close(weights, fit(OPTIMIZERS["momentum"](), parts, world if "op" in arguments else 1.0))


@pytest.mark.ranks(1, 2)
def test_backward_passes_in_a_file(world, shared_tmp_path):
    """The file loads without tfdist and accumulates over as many steps."""
    path = shared_tmp_path / f"rank{tfdist.rank()}.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=3), loss="mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert loaded.optimizer.gradient_accumulation_steps == 3
    assert_close(loaded.optimizer.variables, model.optimizer.variables, relative=0)


@pytest.mark.ranks(1, 2)
def test_a_configuration_makes_one_that_adds_up_passes(world):
    """The sum of two passes, averaged over the ranks."""
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.5), backward_passes_per_step=2)
    again = optimizer.from_config(optimizer.get_config())
    variable = tf.Variable([8.0])
    again.build([variable])
    for value in (1.0, 3.0):
        again.apply_gradients([(tf.constant([value + tfdist.rank()]), variable)])
    assert variable.numpy() == [8.0 - 0.5 * (4.0 + 2 * np.mean(range(world)))]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_configuration_makes_an_optimizer_that_reduces_alike(world, scaled):
    plain = keras.optimizers.SGD(0.5)
    wrapped = keras.optimizers.LossScaleOptimizer(plain, initial_scale=1.0) if scaled else plain
    optimizer = tfdist.DistributedOptimizer(wrapped, op=tfdist.Sum)
    again = optimizer.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    assert again is not optimizer
    variable = tf.Variable([8.0])
    again.apply_gradients([(tf.constant([1.0 + tfdist.rank()]), variable)])
    assert variable.numpy() == [8.0 - 0.5 * sum(range(1, world + 1))]
    with pytest.raises(tfdist.errors.ConfigError, match=r"optimizer\.from_config\(config\) instead of type"):
        type(optimizer).from_config(optimizer.get_config())


@pytest.mark.ranks(1, 2)
@MODES
def test_an_infinity_stays_in_its_update(world, wrap):
    """Accumulated gradients begin again at zero."""
    optimizer = tfdist.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    variable = tf.Variable([0.0])
    optimizer.build([variable])
    step = wrap(lambda gradient: optimizer.apply_gradients([(gradient, variable)]))
    for value in (np.inf, 1.0):
        step(tf.constant([value], tf.float32))
    assert not np.isfinite(variable.numpy())
    variable.assign([0.0])
    for value in (1.0, 3.0):
        step(tf.constant([value], tf.float32))
    assert variable.numpy() == [-2.0]
