"""Training in graphs that a session runs: equal to one process on the samples of all ranks."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.tensorflow as hvd
from tfdist.errors import ConfigError
from tfdist.ops.graph import session_graph
from tfdist.testing.parity import assert_close, assert_identical_on_ranks

v1 = tf.compat.v1
SIZES = pytest.mark.ranks(1, 2, 3, 4)
STEPS, BATCH, FEATURES = 6, 4, 3
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
}


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def batches_of(rank):
    generator = np.random.default_rng(50 + rank)
    x = generator.normal(size=(STEPS, BATCH, FEATURES)).astype("float32")
    return x, np.tanh(x.sum(axis=2, keepdims=True) + rank)


def of_all(world):
    """Step s has the samples of all ranks."""
    parts = [batches_of(rank) for rank in range(world)]
    return tuple(np.concatenate([part[kind] for part in parts], axis=1) for kind in (0, 1))


def loss_of(x, y, seed):
    """Of a model with two layers, whose first values differ by seed."""
    generator = np.random.default_rng(seed)
    hidden = v1.get_variable("hidden", initializer=generator.normal(size=(FEATURES, 5)).astype("float32"))
    last = v1.get_variable("last", initializer=generator.normal(size=(5, 1)).astype("float32"))
    return tf.reduce_mean(tf.square(tf.matmul(tf.tanh(tf.matmul(x, hidden)), last) - y))


def train(batches, optimizer, seed, hooks=(), **minimize):
    """The values of all trainable variables after training on these batches."""
    inputs, targets = batches
    x = v1.placeholder(tf.float32, (None, FEATURES))
    y = v1.placeholder(tf.float32, (None, 1))
    step = optimizer.minimize(loss_of(x, y, seed), **minimize)
    with v1.train.MonitoredTrainingSession(hooks=list(hooks)) as session:
        for number in range(len(inputs)):
            session.run(step, {x: inputs[number], y: targets[number]})
        return session.run(v1.trainable_variables())


def alone(batches, make):
    """The same by one process, without Horovod's names."""
    with tf.Graph().as_default():
        return train(batches, make(), seed=0)


@SIZES
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_one_process(world, name):
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name]())
    weights = train(batches_of(tfdist.rank()), optimizer, seed=tfdist.rank(), hooks=hooks)
    assert_identical_on_ranks(weights)
    assert_close(weights, alone(of_all(world), OPTIMIZERS[name]))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "arguments",
    [
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"num_groups": 2},
        {"sparse_as_dense": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments_of_the_optimizer(world, arguments):
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["momentum"](), **arguments)
    weights = train(batches_of(tfdist.rank()), optimizer, seed=tfdist.rank(), hooks=hooks)
    assert_identical_on_ranks(weights)
    reference = alone(of_all(world), OPTIMIZERS["momentum"])
    assert_close(weights, reference, *((2e-2, 0.1) if "compression" in arguments else ()))


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("average", [True, False])
def test_several_passes_for_one_update(world, average):
    """Three passes of four samples are one of twelve, with the mean; their sum is three times that."""
    passes = 3
    optimizer = hvd.DistributedOptimizer(
        v1.train.MomentumOptimizer(0.1 if average else 0.1 / passes, 0.9),
        backward_passes_per_step=passes,
        average_aggregated_gradients=average,
    )
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    weights = train(batches_of(tfdist.rank()), optimizer, seed=tfdist.rank(), hooks=hooks)
    assert_identical_on_ranks(weights)
    x, y = of_all(world)
    together = tuple(array.reshape(STEPS // passes, -1, array.shape[2]) for array in (x, y))
    assert_close(weights, alone(together, OPTIMIZERS["momentum"]))


@pytest.mark.ranks(2)
def test_every_pass_counts_as_a_step(world):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
    counter = v1.train.get_or_create_global_step()
    variable = v1.get_variable("x", initializer=1.0)
    step = optimizer.minimize(variable * variable, global_step=counter)
    seen = []
    with v1.train.MonitoredTrainingSession() as session:
        for _ in range(4):
            session.run(step)
            seen.append([float(value) for value in session.run([counter, variable])])
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert [value for _, value in seen] == pytest.approx([1.0, 0.6, 0.6, 0.36])  # 1 - 0.1 * (2 + 2)


@pytest.mark.ranks(2)
def test_rows_of_a_table(world):
    """Gradients that are slices are gathered, or made dense."""
    rank = tfdist.rank()
    for sparse_as_dense in (False, True):
        with tf.Graph().as_default():
            table = v1.get_variable("table", initializer=np.ones((4, 2), "float32"))
            loss = tf.reduce_sum(tf.gather(table, [rank, 3])) * (rank + 1)
            optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), sparse_as_dense=sparse_as_dense)
            step = optimizer.minimize(loss)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(step)
                rows = session.run(table)[:, 0]
        np.testing.assert_allclose(rows, [0.95, 0.9, 1.0, 0.85], rtol=1e-6)


@pytest.mark.ranks(2)
def test_local_variables_keep_their_gradients(world):
    own, shared = (v1.get_variable(name, initializer=0.0) for name in ("own", "shared"))
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), scale_local_gradients=False)
    optimizer.register_local_var(own)
    step = optimizer.minimize((own + shared) * (tfdist.rank() + 1.0))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        values = session.run([own, shared])
    np.testing.assert_allclose(values, [-0.1 * (tfdist.rank() + 1), -0.15], rtol=1e-6)


@SIZES
@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_broadcast_of_global_variables(world, resource):
    """Of both kinds that TensorFlow 1 has, and a broadcast may come after the step that trains."""
    rank = tfdist.rank()
    variables = [
        v1.get_variable(f"v{number}", initializer=np.full(number + 1, rank, dtype), use_resource=resource)
        for number, dtype in enumerate(("float32", "int64", "float64"))
    ]
    change = tf.group(*[v1.assign_add(variable, tf.ones_like(variable)) for variable in variables])
    everything = hvd.broadcast_global_variables(world - 1)
    part = hvd.broadcast_variables(variables[:1], 0)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(everything)
        session.run(change)
        assert [value.tolist() for value in session.run(variables)] == [[world] * 1, [world] * 2, [world] * 3]
        session.run(v1.assign(variables[0], [float(rank)]))
        session.run(part)
        assert session.run(variables[0]).tolist() == [0.0]


@pytest.mark.ranks(1)
def test_without_variables_there_is_nothing_to_broadcast(world):
    with v1.Session() as session:
        session.run(hvd.broadcast_global_variables(0))


@pytest.mark.ranks(2)
def test_a_checkpoint_of_rank_0_is_gone_on_from(world, tmp_path):
    """The first rank saves; all go on from what it restores."""
    folder = str(tmp_path) if tfdist.rank() == 0 else None
    for last_step in (3, 5):
        with tf.Graph().as_default():
            counter = v1.train.get_or_create_global_step()
            variable = v1.get_variable("x", initializer=float(tfdist.rank()))
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
            with tf.control_dependencies([optimizer.minimize(-variable, global_step=counter)]):
                changed = variable.read_value()
            hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last_step)]
            taken = 0
            with v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
                while not session.should_stop():
                    value = session.run(changed)
                    taken += 1
        assert taken == (3 if last_step == 3 else 2)
    assert value == 5.0


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=0), "backward_passes_per_step"),
        (lambda: hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), device_dense="/gpu:0"), "device_dense"),
        (lambda: hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Max), "gradients are reduced by"),
        (lambda: hvd.BroadcastGlobalVariablesHook(0, device="/gpu:0"), "device='/gpu:0' is not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused(world, call, text):
    with pytest.raises(ConfigError, match=text):
        call()


@pytest.mark.ranks(1)
def test_slices_are_not_added_up(world):
    table = v1.get_variable("table", initializer=np.ones((4, 2), "float32"))
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
    with pytest.raises(ConfigError, match=r"table:0 is a tf.IndexedSlices. Pass sparse_as_dense=True"):
        optimizer.minimize(tf.reduce_sum(tf.gather(table, [1])))


@pytest.mark.ranks(1)
def test_global_variables_belong_to_a_session(world):
    with session_graph.left(), pytest.raises(ConfigError, match="needs a graph that a session runs"):
        hvd.broadcast_global_variables(0)


@pytest.mark.ranks(1)
def test_reference_variables_in_several_passes_say_what_to_do(world):
    variable = v1.get_variable("x", initializer=1.0, use_resource=False)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
    with pytest.raises(ConfigError, match=r"x:0 has use_resource=False.*disable_v2_behavior"):
        optimizer.minimize(variable * variable)


@pytest.mark.ranks(1)
def test_passes_outside_a_graph_are_refused(world):
    """There every step would begin a new sum, and no update would ever come."""
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
    with session_graph.left():
        variable = tf.Variable(1.0)
        with pytest.raises(ConfigError, match="needs a graph that a session runs"):
            optimizer.minimize(lambda: variable * variable, var_list=[variable])


@pytest.mark.ranks(1)
def test_passes_of_two_losses_need_two_optimizers(world):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
    variable = v1.get_variable("x", initializer=1.0)
    optimizer.minimize(variable * variable)
    with pytest.raises(ConfigError, match="Make one for each loss"):
        optimizer.minimize(variable)
    with tf.Graph().as_default():
        optimizer.minimize(v1.get_variable("x", initializer=1.0))


@pytest.mark.ranks(2, 3)
def test_in_eager_execution(world):
    """The optimizers of TensorFlow 1 work there, too."""
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    with session_graph.left():
        variable = tf.Variable(1.0)
        optimizer.minimize(lambda: variable * (tfdist.rank() + 1.0), var_list=[variable])
        assert float(variable) == pytest.approx(1.0 - 0.1 * (world + 1) / 2)
