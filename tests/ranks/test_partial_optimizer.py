"""Local variables: not reduced, scaled as Horovod does, and never a reason for shared weights to differ."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing.parity import assert_close, assert_identical_on_ranks
from tfdist.training import optimizer as optimizers

SIZES = pytest.mark.ranks(1, 2, 3, 4)
MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
KINDS = pytest.mark.parametrize("kind", ["tf", "keras"])
ACCUMULATION = {"every_step": {}, "accumulated": {"gradient_accumulation_steps": 2}}
STEPS, BATCH, FEATURES, CLASSES = 8, 4, 5, 7


def share():
    """This rank's gradient: 1, 2, 3, ..."""
    return tfdist.rank() + 1.0


def variable_of(kind, value):
    return keras.Variable(value) if kind == "keras" else tf.Variable(value)


def inside(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


def apply(optimizer, wrap, *pairs):
    wrap(lambda: optimizer.apply_gradients([(tf.fill(tf.shape(inside(v)), g), v) for g, v in pairs]))()


@SIZES
@MODES
@KINDS
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("op", [tfdist.Average, tfdist.Sum], ids=["average", "sum"])
def test_exact_updates(world, op, scaled, kind, wrap):
    """Horovod divides local gradients by the number of ranks with Average and Sum alike."""
    local, shared = variable_of(kind, [1.0, 1.0]), variable_of(kind, 1.0)
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op, scale_local_gradients=scaled)
    optimizer.register_local_var(local)
    optimizer.build([local, shared])
    apply(optimizer, wrap, (share(), local), (share(), shared))
    mean = (world + 1) / 2
    assert float(inside(shared)) == 1 - (mean if op is tfdist.Average else mean * world)
    assert_close([inside(local)], [np.full(2, 1 - (share() / world if scaled else share()))], relative=1e-6)


@SIZES
@KINDS
@pytest.mark.parametrize("registered", ["whole", "inside"])
@pytest.mark.parametrize("applied", ["whole", "inside"])
@pytest.mark.parametrize("when", ["before_build", "after_build"])
def test_registered_by_identity(world, when, applied, registered, kind):
    """A `keras.Variable` and the `tf.Variable` in it are one; an equal variable is another."""
    local, shared = variable_of(kind, 1.0), variable_of(kind, 1.0)
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    take = {"whole": lambda v: v, "inside": inside}
    variables = [take[applied](v) for v in (local, shared)]
    if when == "after_build":
        optimizer.build(variables)
    optimizer.register_local_var(take[registered](local))
    optimizer.register_local_var(take[registered](local))
    optimizer.apply_gradients([(tf.constant(world * share()), v) for v in variables])
    assert float(inside(local)) == pytest.approx(1 - share())
    assert float(inside(shared)) == 1 - world * (world + 1) / 2


@pytest.mark.ranks(2)
def test_registration_that_would_come_too_late_is_refused(world):
    local, late = tf.Variable(1.0, name="table_3"), tf.Variable(1.0, name="late_4")
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.register_local_var(local)
    optimizer.build([local, late])
    apply(optimizer, lambda f: f, (1.0, local), (1.0, late))
    apply(optimizer, tf.function, (1.0, local), (1.0, late))
    optimizer.register_local_var(local)  # nothing new
    with pytest.raises(tfdist.errors.ConfigError, match="late is registered too late: a compiled step"):
        optimizer.register_local_var(late)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("wrong", ["kernel", None, [tf.Variable(1.0)], tf.constant(1.0), keras.layers.Dense(1)])
def test_what_is_no_variable_is_refused(world, wrong):
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(tfdist.errors.ConfigError, match=r"one keras\.Variable or tf\.Variable"):
        optimizer.register_local_var(wrong)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"local_layers": "dense"}, "Keras layer"),
        ({"local_layers": [keras.layers.Dense(1), "dense"]}, "'dense'"),
        ({"num_groups": 1, "groups": []}, "not both"),
        ({"device_dense": "/gpu:0"}, "device_dense"),
        ({"op": tfdist.Min}, "op=Average or op=Sum"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(world, arguments, expected):
    with pytest.raises(tfdist.errors.ConfigError, match=expected):
        tfdist.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), **arguments)


@SIZES
@MODES
@pytest.mark.parametrize("mean_of_passes", [True, False], ids=["mean", "sum"])
def test_with_backward_passes(world, mean_of_passes, wrap):
    """Shared and local gradients are added up over 3 steps alike; local ones are divided by the number of ranks."""
    local, shared = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = tfdist.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=3, average_aggregated_gradients=mean_of_passes
    )
    optimizer.register_local_var(local)
    optimizer.build([local, shared])
    gradient = tf.Variable(0.0)
    step = wrap(lambda: optimizer.apply_gradients([(gradient * 1.0, local), (gradient * 1.0, shared)]))
    for index in range(7):
        gradient.assign(share() * (index + 1.0))
        step()
        done = sum(range(1, 3 * ((index + 1) // 3) + 1)) / (3 if mean_of_passes else 1)
        assert_close([shared, local], [-done * (world + 1) / 2, -done * share() / world], relative=1e-6)


@SIZES
@MODES
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("where", ["local", "shared"])
@pytest.mark.parametrize("holders", ["all", "last"])
def test_an_infinity_on_one_rank_skips_the_step_on_all(world, holders, where, accumulation, wrap):
    """A local gradient overflows on the last rank only; the others have none at all where only that rank has one."""
    has_local = holders == "all" or tfdist.rank() == world - 1
    local, shared = tf.Variable(1.0), tf.Variable(1.0)
    inner = keras.optimizers.SGD(1.0, **ACCUMULATION[accumulation])
    scaling = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    optimizer = tfdist.PartialDistributedOptimizer(scaling, scale_local_gradients=False)
    variables = [local, shared] if has_local else [shared]
    if has_local:
        optimizer.register_local_var(local)
    optimizer.build(variables)
    gradients = {local.ref(): tf.Variable(0.0), shared.ref(): tf.Variable(0.0)}
    step = wrap(lambda: optimizer.apply_gradients([(gradients[v.ref()] * 8.0, v) for v in variables]))

    def run(value, for_local, for_shared):
        gradients[local.ref()].assign(value if for_local is None else for_local)
        gradients[shared.ref()].assign(value if for_shared is None else for_shared)
        step()

    bad = np.inf if tfdist.rank() == world - 1 else None
    passes = inner.gradient_accumulation_steps or 1
    run(share(), bad if where == "local" else None, bad if where == "shared" else None)
    state = (float(shared), float(local), float(optimizer.dynamic_scale), int(optimizer.iterations))
    assert state == (1.0, 1.0, 4.0, 0)
    for _ in range(passes):
        run(share(), None, None)
    assert int(optimizer.iterations) == 1
    # The scale is 4 now, and gradients were multiplied by 8.
    assert float(shared) == pytest.approx(1 - 2 * (world + 1) / 2)
    assert float(local) == pytest.approx(1 - 2 * share() if has_local else 1.0)
    assert_identical_on_ranks([shared])


@SIZES
@MODES
@pytest.mark.parametrize("holders", ["all", "last"])
def test_the_global_norm_is_that_of_all_ranks(world, holders, wrap):
    """Local gradients of 1, 2, ... on the ranks and a shared one of 2, as one model: the same factor on every rank."""
    has_local = [holders == "all" or rank == world - 1 for rank in range(world)]
    local, shared = tf.Variable(0.0), tf.Variable([0.0])
    optimizer = tfdist.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0, global_clipnorm=0.5), scale_local_gradients=False
    )
    pairs = [(2.0, shared)]
    if has_local[tfdist.rank()]:
        optimizer.register_local_var(local)
        pairs.append((share(), local))
    optimizer.build([variable for _, variable in pairs])
    apply(optimizer, wrap, *pairs)
    norm = np.sqrt(2.0**2 + sum((rank + 1.0) ** 2 for rank in range(world) if has_local[rank]))
    assert_identical_on_ranks([shared])
    own = share() if has_local[tfdist.rank()] else 0.0
    assert_close([shared, local], [[-2.0 * 0.5 / norm], -own * 0.5 / norm], relative=1e-6)


@SIZES
def test_a_norm_below_the_limit_clips_nothing(world):
    local, shared = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1e3), scale_local_gradients=False)
    optimizer.register_local_var(local)
    apply(optimizer, lambda f: f, (share(), local), (2.0, shared))
    assert (float(local), float(shared)) == (-share(), -2.0)


def data_of(rank):
    """The samples of one rank; the first feature is also a row of a table."""
    generator = np.random.default_rng(100 + rank)
    x = generator.normal(size=(STEPS * BATCH, FEATURES)).astype("float32")
    x[:, 0] = generator.integers(0, CLASSES, size=len(x))
    y = np.stack([np.sin(x[:, 1] + rank), x[:, 0] / CLASSES], axis=1).astype("float32")
    return x, y


def concatenated(world):
    """Step s holds batch s of every rank, one after the other."""
    parts = [data_of(rank) for rank in range(world)]
    batched = [np.stack([part[k].reshape(STEPS, BATCH, -1) for part in parts], axis=1) for k in (0, 1)]
    return tuple(array.reshape(STEPS * world * BATCH, -1) for array in batched)


def own_layers(seed):
    """What each rank has of its own: a table with one row a class, and a dense layer."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Embedding(CLASSES, 3), keras.layers.Dense(3, activation="tanh")]
    layers[0].build()
    layers[1].build((None, FEATURES))
    return layers


def shared_layer():
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(2)
    layer.build((None, 6))
    return layer


class Team(keras.Model):
    """The layers of one rank, or of all ranks, each of which sees its part of the batch; then the shared layer."""

    def __init__(self, members, shared):
        super().__init__()
        self.members = [list(layers) for layers in members]
        self.flat = [layer for layers in members for layer in layers]
        self.shared = shared

    def call(self, x):
        outputs = []
        for (table, dense), part in zip(self.members, tf.split(x, len(self.members), axis=0), strict=True):
            outputs.append(tf.concat([table(tf.cast(part[:, 0], tf.int32)), dense(part)], axis=1))
        return self.shared(tf.concat(outputs, axis=0))


def fit(model, data, batch, optimizer, **arguments):
    model.compile(optimizer, loss="mse", **arguments)
    model.fit(*data, batch_size=batch, shuffle=False, verbose=0)
    return model


OPTIMIZERS = {
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, **kw),
    "adamw_ema": lambda **kw: keras.optimizers.AdamW(0.005, weight_decay=0.02, use_ema=True, ema_momentum=0.9, **kw),
}
CLIPPING = {
    "unclipped": {},
    "clipnorm": {"clipnorm": 0.02},
    "clipvalue": {"clipvalue": 0.005},
    "global_clipnorm": {"global_clipnorm": 0.05},
}


def check_parity(world, make, **compile_arguments):
    """Equal to one process that has the layers of all ranks, and trains on the batches of all ranks together."""
    mine = own_layers(seed=10 + tfdist.rank())
    distributed = tfdist.PartialDistributedOptimizer(make(), local_layers=mine)
    model = fit(Team([mine], shared_layer()), data_of(tfdist.rank()), BATCH, distributed, **compile_arguments)
    assert_identical_on_ranks(model.shared.get_weights(), "shared weights")
    reference = Team([own_layers(seed=10 + rank) for rank in range(world)], shared_layer())
    fit(reference, concatenated(world), world * BATCH, make())
    assert_close(model.shared.get_weights(), reference.shared.get_weights())
    for layer, expected in zip(mine, reference.members[tfdist.rank()], strict=True):
        assert_close(layer.get_weights(), expected.get_weights())


@pytest.mark.ranks(3)
@pytest.mark.parametrize("clipping", CLIPPING)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parity(world, optimizer, accumulation, clipping):
    check_parity(world, lambda: OPTIMIZERS[optimizer](**CLIPPING[clipping], **ACCUMULATION[accumulation]))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
def test_parity_with_loss_scaling_and_a_global_norm(world, accumulation):
    def make():
        inner = keras.optimizers.Adam(0.005, global_clipnorm=0.05, **ACCUMULATION[accumulation])
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)

    check_parity(world, make)


@pytest.mark.ranks(2)
def test_parity_eager(world):
    check_parity(world, lambda: OPTIMIZERS["momentum"](global_clipnorm=0.05), run_eagerly=True)


@pytest.mark.ranks(2, 3)
def test_reference_notices_a_reduction_of_local_gradients(world):
    """What the parity tests would see if local gradients were reduced too: they must fail then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers.LocalVariables, "keys", lambda self: frozenset())
        with pytest.raises(AssertionError):
            check_parity(world, OPTIMIZERS["momentum"])


def model_of_rank(seed, scaled=False):
    """Local layers of other shapes on each rank, with moving statistics; the shared layer comes last."""
    keras.utils.set_random_seed(seed)
    units = 4 + tfdist.rank()
    local = [keras.layers.Dense(units, name="own"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((FEATURES,)), *local, keras.layers.BatchNormalization()])
    model.add(keras.layers.Dense(2))
    plain = keras.optimizers.SGD(0.05, momentum=0.9)
    if scaled:
        plain = keras.optimizers.LossScaleOptimizer(plain, initial_scale=4.0)
    model.compile(tfdist.PartialDistributedOptimizer(plain, local_layers=local), loss="mse")
    return model, local


def slots_of(model, layers):
    pairs = tfdist.native.keras_version.slots(model.optimizer)
    wanted = {id(variable) for layer in layers for variable in layer.weights}
    return [slot for variable, slot in pairs if id(variable) in wanted]


def arrays(variables):
    return [np.asarray(variable) for variable in variables]


def plugin(*others):
    return [tfdist.callbacks.DataParallel(scale_learning_rate=False), *others]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss_scale"])
def test_callbacks_leave_local_variables_alone(world, scaled):
    """Broadcast and averages of moving statistics are for shared variables; shapes differ, so a mix-up would fail."""
    model, local = model_of_rank(seed=tfdist.rank(), scaled=scaled)
    before = arrays(local[0].weights)
    data = data_of(tfdist.rank())
    model.fit(*data, batch_size=BATCH, verbose=0, epochs=1, callbacks=plugin())
    assert_identical_on_ranks(arrays(v for layer in model.layers[3:] for v in layer.weights), "shared weights")
    slots = arrays(slots_of(model, local))
    assert [slot.shape for slot in slots] == [v.shape for layer in local for v in layer.trainable_weights]
    assert all(slot.any() for slot in slots)
    assert [(a != b).any() for a, b in zip(before, arrays(local[0].weights), strict=True)] == [True, True]
    mine = arrays(v for layer in local for v in layer.weights)
    model.fit(*data, batch_size=BATCH, verbose=0, epochs=1, callbacks=plugin(Unchanged(local, mine + slots)))


class Unchanged(keras.callbacks.Callback):
    """At the first step of a `fit`, local variables and slots are what they were."""

    def __init__(self, layers, expected):
        super().__init__()
        self.layers, self.expected = layers, expected

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            weights = arrays(v for layer in self.layers for v in layer.weights)
            assert_close([*weights, *arrays(slots_of(self.model, self.layers))], self.expected, relative=0)


@pytest.mark.ranks(1, 2, 3)
def test_a_broadcast_keeps_the_slots_of_local_variables(world):
    """Also where the callback is told which variables are local."""
    keras.utils.set_random_seed(tfdist.rank())
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss="mse")
    model.optimizer.build(model.trainable_variables)
    for slot in model.optimizer.momentums:
        slot.assign(slot + share())
    local = model.layers[0]
    expected = arrays([*local.weights, *slots_of(model, [local])])
    assert all((slot == share()).all() for slot in expected[2:])
    keep = tfdist.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local.weights)
    model.fit(*data_of(tfdist.rank()), batch_size=BATCH, verbose=0, callbacks=[keep, Unchanged([local], expected)])


@pytest.mark.ranks(1, 2, 3)
def test_a_backup_holds_the_local_variables_of_every_rank(world, shared_tmp_path):
    def backup():
        return tfdist.callbacks.BackupAndRestore(shared_tmp_path, delete_checkpoint=False)

    data = data_of(tfdist.rank())
    model, local = model_of_rank(seed=tfdist.rank())
    model.fit(*data, batch_size=BATCH, verbose=0, epochs=1, callbacks=plugin(backup()))
    expected = arrays([*model.weights, *slots_of(model, local)])
    again, its_local = model_of_rank(seed=50 + tfdist.rank())
    again.fit(*data, batch_size=BATCH, verbose=0, epochs=1, callbacks=plugin(backup()))
    assert_close(arrays([*again.weights, *slots_of(again, its_local)]), expected, relative=0)


@pytest.mark.ranks(2)
def test_a_backup_of_other_ranks_is_refused(world, shared_tmp_path, monkeypatch):
    """The local variables of the missing ranks are in no other place."""
    model, _ = model_of_rank(seed=tfdist.rank())
    backup = tfdist.callbacks.BackupAndRestore(shared_tmp_path, delete_checkpoint=False)
    model.fit(*data_of(tfdist.rank()), batch_size=BATCH, verbose=0, epochs=1, callbacks=plugin(backup))
    read = tfdist.callbacks.backup_and_restore.snapshot.newest_valid

    def of_five_ranks(shelf):
        position, found, skipped = read(shelf)
        return position, found | {"ranks": np.array(5)}, skipped

    monkeypatch.setattr(tfdist.callbacks.backup_and_restore.snapshot, "newest_valid", of_five_ranks)
    with pytest.raises(tfdist.errors.TfdistError, match="written by 5 ranks, each with its own local variables"):
        model.fit(*data_of(tfdist.rank()), batch_size=BATCH, verbose=0, epochs=2, callbacks=plugin(backup))


@pytest.mark.ranks(1)
def test_local_variables_stay_registered_in_place(world):
    """`distribute` on a distributed optimizer replaces the settings only."""
    local, shared = tf.Variable(1.0), tf.Variable(1.0)
    optimizer = tfdist.optimizer.distribute(keras.optimizers.SGD(1.0))
    assert not optimizers.has_local_variables(optimizer)
    optimizer.register_local_var(local)
    tfdist.optimizer.distribute(optimizer, scale_local_gradients=False)
    assert [id(v) for v in optimizers.local_variables(optimizer)] == [id(local)]
    assert optimizers.has_local_variables(optimizer)
    apply(optimizer, lambda f: f, (2.0, local), (3.0, shared))
    assert (float(local), float(shared)) == (-1.0, -2.0)
    plain = keras.optimizers.SGD(1.0)
    assert optimizers.local_variables(plain) == optimizers.local_variables(None) == []
    assert not optimizers.has_local_variables(plain)
