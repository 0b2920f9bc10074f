"""Ranks with unequal numbers of batches: every sample is used once, and the result is that of one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore, DataParallel, LearningRateScheduleCallback, ModelCheckpoint
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.errors import ConfigError, MismatchError
from tfdist.input import mark
from tfdist.testing import assert_close, assert_identical_on_ranks
from tfdist.training.gradients import GradientReduction, weighted_by

SAMPLES = 41  # 11 batches of 4, the last of 1
BATCH = 4
EPOCHS = 3
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
}


def samples():
    generator = np.random.default_rng(5)
    x = generator.normal(size=(SAMPLES, 4)).astype("float32")
    return x, (x @ generator.normal(size=(4, 1))).astype("float32")


def dataset():
    return tf.data.Dataset.from_tensor_slices(samples()).batch(BATCH)


def test_no_batch_for_any_rank(world):
    """Of unknown length, so that it shows in the first epoch only."""
    few = tf.data.Dataset.from_tensor_slices(samples()).take(BATCH * world - 1).filter(lambda x, y: True).batch(BATCH)
    model = dense_model()
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match="no rank got a batch in the first epoch of fit, so nothing was trained"):
        model.fit(tfdist.shard(few), epochs=2, verbose=0, callbacks=[DataParallel()])


def dense_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])


def global_batches(world, x, y):
    """Step s of all ranks put together: batches s * world to s * world + world - 1, where there are so many."""
    step = BATCH * world
    return [(x[begin : begin + step], y[begin : begin + step]) for begin in range(0, len(x), step)]


def reference(world, model, optimizer, data=None, epochs=EPOCHS, on_step=None):
    """One process on the global batches."""
    model.compile(optimizer, loss="mse")
    batches = global_batches(world, *(data or samples()))
    for epoch in range(epochs):
        for step, (x, y) in enumerate(batches):
            if on_step is not None:
                on_step(model, epoch, step)
            model.train_on_batch(x, y)
    return model


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("setting", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}], ids=str)
def test_fit_equals_one_process_on_all_samples(world, optimizer, setting):
    model = dense_model()
    model.compile(OPTIMIZERS[optimizer](), loss="mse", metrics=["mae"], **setting)
    history = model.fit(
        tfdist.shard(dataset(), remainder="join"),
        validation_data=tfdist.shard(dataset().take(7), remainder="join"),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[DataParallel(scale_learning_rate=False)],
    ).history
    assert_identical_on_ranks(model.get_weights())
    assert_identical_on_ranks([np.asarray(v) for v in model.optimizer.variables], "state of the optimizer")
    expected = reference(world, dense_model(), OPTIMIZERS[optimizer]())
    assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)
    assert_close(model.get_weights(), expected.get_weights())
    x, y = samples()
    error = np.abs(expected.predict(x[:28], verbose=0) - y[:28]).mean()
    assert np.isclose(history["val_mae"][-1], error, rtol=1e-4)
    assert_identical_on_ranks([np.array(history[name]) for name in sorted(history)], "history")


def test_the_last_rank_has_most_batches(world):
    """`tfdist.shard` by elements gives rank 0 as many as any; by files another may have more."""
    model = dense_model()
    model.compile(OPTIMIZERS["momentum"](), loss="mse")
    callback = DataParallel(scale_learning_rate=False)
    mine = mark.put(dataset().shard(world, world - 1 - tfdist.rank()), "join")
    model.fit(mine, epochs=EPOCHS, verbose=0, callbacks=[callback])
    assert_identical_on_ranks(model.get_weights())
    assert_close(model.get_weights(), reference(world, dense_model(), OPTIMIZERS["momentum"]()).get_weights())


def test_steps_of_tf_data_behind_the_part(world):
    """Samples are dealt out, and batches are made of them after: the mark is found below."""
    samples_of_rank = tfdist.shard(tf.data.Dataset.from_tensor_slices(samples()), remainder="join")
    part = tf.data.Dataset.zip((samples_of_rank.map(lambda x, y: x), samples_of_rank.map(lambda x, y: y)))
    model = dense_model()
    model.compile(OPTIMIZERS["momentum"](), loss="mse")
    callback = DataParallel(scale_learning_rate=False)
    model.fit(part.batch(BATCH).cache().prefetch(1), epochs=EPOCHS, verbose=0, callbacks=[callback])
    assert_identical_on_ranks(model.get_weights())
    assert_close(model.get_weights(), reference(world, dense_model(), OPTIMIZERS["momentum"]()).get_weights())


def test_each_fit_goes_by_its_own_data(world, tmp_path, warnings_of_tfdist):
    """One model and one callback, in one process. What only equal batches allow is allowed with those."""
    model, expected = dense_model(), dense_model()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    expected.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    callback, saving = DataParallel(scale_learning_rate=False), ModelCheckpoint(str(tmp_path / "m.keras"), save_freq=2)
    even = SAMPLES // BATCH // world * world * BATCH
    for remainder in ("join", "drop", "join", "drop"):
        joins = remainder == "join"
        part = tfdist.shard(dataset(), remainder=remainder)
        model.fit(part, epochs=2, verbose=0, callbacks=[callback] if joins else [callback, saving])
        assert ModelHook.of(model).joins == joins
        x, y = samples() if joins else (array[:even] for array in samples())
        for _ in range(2):
            for batch in global_batches(world, x, y):
                expected.train_on_batch(*batch)
        assert_identical_on_ranks(model.get_weights())
        assert_close(model.get_weights(), expected.get_weights())
    assert not [line for line in warnings_of_tfdist if "equal weight" in line]


def test_validation_data_that_is_joined_changes_no_training(world, tmp_path):
    """Neither that of the fit nor that of later ones; its metrics are those of all samples all the same."""
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=2), loss="mse", metrics=["mae"])
    saving = ModelCheckpoint(str(tmp_path / "m.keras"), save_freq=2)
    for validation in (tfdist.shard(dataset().take(7), remainder="join"), None):
        callbacks = [DataParallel(scale_learning_rate=False), saving]
        part = tfdist.shard(dataset())
        history = model.fit(part, validation_data=validation, epochs=2, verbose=0, callbacks=callbacks).history
        assert_identical_on_ranks(model.get_weights())
        if validation is not None:
            x, y = samples()
            error = np.abs(model.predict(x[:28], verbose=0) - y[:28]).mean()
            assert np.isclose(history["val_mae"][-1], error, rtol=1e-4)
    with pytest.raises(MismatchError, match="the number of steps of an epoch is "):
        model.fit(dataset().shard(world, tfdist.rank()), verbose=0, callbacks=[DataParallel()])


def from_generator(part, folder):
    return tf.data.Dataset.from_generator(lambda: iter(part), output_signature=part.element_spec)


def from_file(part, folder):
    part.save(str(folder))
    return tf.data.Dataset.load(str(folder))


@pytest.mark.parametrize("remade", [from_generator, from_file])
def test_a_part_that_does_not_show_where_it_is_from(world, remade, tmp_path):
    """An error on every rank, and no rank that waits."""
    part = remade(tfdist.shard(dataset(), remainder="join"), tmp_path)
    model = dense_model()
    model.compile("sgd", loss="mse")
    with pytest.raises(MismatchError, match=r"the same number of batches.*a generator, saved data or arrays") as caught:
        model.fit(part, epochs=2, verbose=0, callbacks=[DataParallel()])
    assert len(set(tfdist.allgather_object(str(caught.value)))) == 1


@pytest.mark.parametrize("shown", [True, False])
def test_samples_that_weigh_more_are_told(world, shown, warnings_of_tfdist):
    """Equally many batches, of which the last has not equally many samples, are no error: the ranks may count alike."""
    rows = {2: 39, 3: 41}[world]
    part = tfdist.shard(tuple(array[:rows] for array in samples()), remainder="join")
    model = dense_model()
    model.compile("sgd", loss="mse")
    data = {"x": part[0], "y": part[1]} if shown else {"x": tf.data.Dataset.from_tensor_slices(part).batch(BATCH)}
    arguments = {"batch_size": BATCH, "shuffle": False} if shown else {}
    model.fit(**data, **arguments, epochs=2, verbose=0, callbacks=[DataParallel()])
    told = [line for line in warnings_of_tfdist if "equal weight in each step" in line]
    assert len(told) == (not shown and tfdist.rank() == 0)
    counts = ", ".join(str(-(-(rows - rank) // world)) for rank in range(world))
    assert all(f"trained on {counts} samples" in line for line in told)


def test_ranks_that_fit_other_parts(world):
    part = tfdist.shard(dataset(), remainder="join")
    model = dense_model()
    model.compile("sgd", loss="mse")
    others = "rank 1" if world == 2 else "ranks 1-2"
    with pytest.raises(MismatchError, match=f"with the remainder is join on rank 0; empty on {others}"):
        model.fit(dataset() if tfdist.rank() else part, verbose=0, callbacks=[DataParallel()])


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed(world, compression):
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    callback = DataParallel(scale_learning_rate=False, compression=compression)
    model.fit(tfdist.shard(dataset(), remainder="join"), epochs=EPOCHS, verbose=0, callbacks=[callback])
    assert_identical_on_ranks(model.get_weights())
    expected = reference(world, dense_model(), keras.optimizers.SGD(0.05))
    # Each of the 33 updates is off by at most the rounding of a gradient, once on each rank and once more.
    relative = 33 * {"fp16": 2.0**-11, "bf16": 2.0**-8}[compression]
    assert_close(model.get_weights(), expected.get_weights(), relative=relative, floor=0.1)


def test_arrays(world):
    """Rows r, r + n, ...: every rank has one row more or less, in batches of its own."""
    x, y = samples()
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    mine = tfdist.shard((x, y), remainder="join")
    assert sum(tfdist.allgather_object(len(mine[0]))) == SAMPLES
    callback = DataParallel(scale_learning_rate=False)
    model.fit(*mine, batch_size=BATCH, shuffle=False, epochs=EPOCHS, verbose=0, callbacks=[callback])
    expected = reference(world, dense_model(), keras.optimizers.SGD(0.01, momentum=0.9))
    assert_identical_on_ranks(model.get_weights())
    assert_close(model.get_weights(), expected.get_weights())


def test_embedding(world):
    """Its gradient is gathered, row by row."""
    ids = np.random.default_rng(1).integers(0, 9, size=(SAMPLES, 3))
    targets = samples()[1]

    def new_model():
        keras.utils.set_random_seed(3)
        layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(9, 2), keras.layers.Flatten()]
        return keras.Sequential([*layers, keras.layers.Dense(1)])

    model = new_model()
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    part = tfdist.shard(tf.data.Dataset.from_tensor_slices((ids, targets)).batch(BATCH), remainder="join")
    model.fit(part, epochs=EPOCHS, verbose=0, callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(model.get_weights())
    expected = reference(world, new_model(), keras.optimizers.SGD(0.05), (ids, targets))
    assert_close(model.get_weights(), expected.get_weights())


def test_warmup_counts_the_steps_of_the_longest_rank(world):
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    part = tfdist.shard(dataset(), remainder="join")
    model.fit(part, epochs=EPOCHS, verbose=0, callbacks=[DataParallel(warmup_epochs=2)])
    assert_identical_on_ranks(model.get_weights())
    steps = -(-11 // world)

    def warm_up(reference_model, epoch, step):
        taken = min(epoch * steps + step, 2 * steps)
        reference_model.optimizer.learning_rate = 0.01 * (1 + (world - 1) * taken / (2 * steps))

    expected = reference(world, dense_model(), keras.optimizers.SGD(0.01), on_step=warm_up)
    assert_close(model.get_weights(), expected.get_weights())


def test_schedule_without_stairs(world):
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    schedule = LearningRateScheduleCallback(0.02, lambda epoch: 0.5**epoch, staircase=False)
    part = tfdist.shard(dataset(), remainder="join")
    callbacks = [DataParallel(scale_learning_rate=False), schedule]
    model.fit(part, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    assert_identical_on_ranks(model.get_weights())
    steps = -(-11 // world)

    def decay(reference_model, epoch, step):
        reference_model.optimizer.learning_rate = 0.02 * 0.5 ** (epoch + step / steps)

    expected = reference(world, dense_model(), keras.optimizers.SGD(0.01), on_step=decay)
    assert_close(model.get_weights(), expected.get_weights())


def test_moving_statistics_are_those_of_all_ranks(world):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    part = tfdist.shard(dataset(), remainder="join")
    own = [batch for batch, _ in part]
    model.fit(part, epochs=1, verbose=0, callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks([np.asarray(v) for v in model.variables])
    moving = np.zeros(4)
    for batch in own:
        moving = 0.99 * moving + 0.01 * np.mean(batch, axis=0)
    expected = np.mean(tfdist.allgather(moving[np.newaxis], name="moving means"), axis=0)
    assert_close([model.layers[0].moving_mean], [expected])


@pytest.mark.parametrize("kind", ["layer", "keras"])
def test_synchronized_batch_normalization(world, kind):
    """The moments are those of the global batch, and each rank's gradient has the weight of its samples."""
    synchronized = {
        "layer": lambda: tfdist.SyncBatchNormalization(momentum=0.9),
        "keras": lambda: keras.layers.BatchNormalization(momentum=0.9, synchronized=True),
    }

    def new_model(normalization):
        keras.utils.set_random_seed(3)
        layers = [keras.Input((4,)), keras.layers.Dense(5), normalization, keras.layers.Activation("tanh")]
        return keras.Sequential([*layers, keras.layers.Dense(1)])

    model = new_model(synchronized[kind]())
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    part = tfdist.shard(dataset(), remainder="join")
    model.fit(part, epochs=EPOCHS, verbose=0, callbacks=[DataParallel(scale_learning_rate=False)])
    assert_identical_on_ranks(model.get_weights())
    plain = new_model(keras.layers.BatchNormalization(momentum=0.9))
    expected = reference(world, plain, keras.optimizers.SGD(0.01, momentum=0.9))
    assert_close(model.get_weights(), expected.get_weights())


def test_mixed_precision_with_local_variables(world):
    """Ranks agree that gradients are finite while one of them has joined; local gradients weigh as shared ones."""

    def train(steps, weights, scale):
        local, shared = keras.Variable(1.0), keras.Variable(1.0)
        optimizer = tfdist.PartialDistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0), local_layers=[]
        )
        optimizer.build([local, shared])
        optimizer.register_local_var(local)
        for step in range(steps):
            with weighted_by(tf.constant(weights[step], tf.int64)):
                optimizer.apply([tf.constant(2.0 * scale), tf.constant(2.0 * scale)], [local, shared])
        return float(local), float(shared)

    rank = tfdist.rank()
    local, shared = train(rank + 1, [rank + 2] * (rank + 1), float(rank + 1))
    last = tfdist.join()
    assert last == world - 1
    expected_local = expected_shared = 1.0
    for step in range(rank + 1):
        active = range(step, world)
        total = sum(r + 2 for r in active)
        expected_local -= (rank + 2) / total * (rank + 1)
        expected_shared -= sum((r + 2) / total * (r + 1) for r in active)
    assert np.isclose(local, expected_local, rtol=1e-5)
    assert np.isclose(shared, expected_shared, rtol=1e-5)


def test_sparse_rows_without_weight_count_for_nothing(world):
    """Not even a NaN; and where nobody has a weight the average is zeros, as for dense gradients."""
    rows = tf.IndexedSlices(tf.constant([[np.nan if tfdist.rank() == 0 else 3.0]]), [0], tf.constant([2, 1]))
    dense = tf.constant([np.nan if tfdist.rank() == 0 else 3.0])
    table, bias = tf.Variable([[1.0], [1.0]]), tf.Variable([1.0])
    for weight in (0 if tfdist.rank() == 0 else 5, 0):
        with weighted_by(tf.constant(weight, tf.int64)):
            sparse, plain = GradientReduction().reduce([rows, dense], [table, bias], "gradients")
        expected = 3.0 if tfdist.allreduce(weight, op=tfdist.Max, name="weight") else 0.0
        assert np.array_equal(tf.convert_to_tensor(sparse), [[expected], [0.0]])
        assert np.array_equal(plain, [expected])


def test_a_loop_of_ones_own(world):
    """The end of the data as one writes it without `fit`."""
    variable = tf.Variable(1.0)
    steps = tfdist.rank() + 1
    for _ in range(steps):
        variable.assign_add(tfdist.allreduce(tf.constant(1.0), op=tfdist.Sum, name="step"))
    last = tfdist.join()
    assert last == world - 1
    tfdist.broadcast_variables([variable], root_rank=last)
    # In step s the ranks s to world - 1 still have data.
    assert float(variable) == 1 + world * (world + 1) / 2


def test_every_file_is_read_to_its_end(world, shared_tmp_path):
    lengths = [3, 1, 4, 2, 5]
    if tfdist.rank() == 0:
        for index, length in enumerate(lengths):
            with tf.io.TFRecordWriter(str(shared_tmp_path / f"{index}.tfrecord")) as writer:
                for sample in range(length):
                    writer.write(f"{index}/{sample}")
    tfdist.barrier(name="files are written")
    names = [str(shared_tmp_path / f"{index}.tfrecord") for index in range(len(lengths))]
    part = tfdist.shard(tf.data.TFRecordDataset(names), policy="file", remainder="join")
    seen = sum(tfdist.allgather_object([record.numpy().decode() for record in part]), [])
    assert sorted(seen) == [f"{index}/{sample}" for index in range(len(lengths)) for sample in range(lengths[index])]


def test_what_needs_equal_batches_is_refused(world, tmp_path):
    part = tfdist.shard(dataset(), remainder="join")
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=2), loss="mse")
    with pytest.raises(ConfigError, match="gradient_accumulation_steps needs the same number of batches"):
        model.fit(part, verbose=0, callbacks=[DataParallel()])
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    for callback in (
        BackupAndRestore(tmp_path, save_freq=2),
        ModelCheckpoint(str(tmp_path / "m.keras"), save_freq=2),
    ):
        with pytest.raises(ConfigError, match=r"save_freq=2\) needs the same number of batches on every rank"):
            model.fit(part, verbose=0, callbacks=[DataParallel(), callback])
    model.fit(part, verbose=0, callbacks=[DataParallel(checkpoint=str(tmp_path / "m.keras"))])
    assert (tmp_path / "m.keras").exists() == (tfdist.rank() == 0)


def test_too_few_elements(world):
    with pytest.raises(ConfigError, match=f"found 1 elements; {world} are needed"):
        tfdist.shard(tf.data.Dataset.range(1), remainder="join")
    with pytest.raises(ConfigError, match=f"found 1 rows; {world} are needed"):
        tfdist.shard(np.zeros((1, 2)), remainder="join")


class Overflowing(keras.layers.Layer):
    """Passes on a gradient that is no number where the input is large."""

    def call(self, x):
        return keras.ops.where(keras.ops.abs(x) > 1e20, x * float("inf"), x)


@pytest.mark.ranks(2, 3)
def test_loss_scale_of_ranks_whose_last_steps_overflow(world):
    """Steps that are skipped count no update, and change the scale."""
    x, y = (array[:BATCH].repeat(world + 1, axis=0) for array in samples())
    x[-BATCH:] = 1e30  # of the last batch, which rank 0 has alone
    part = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), remainder="join")
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), Overflowing(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0), loss="mse")
    model.fit(part, epochs=1, verbose=0, callbacks=[DataParallel()])
    assert float(model.optimizer.dynamic_scale) == 32.0
    assert int(model.optimizer.iterations) == 1
    assert_identical_on_ranks([np.asarray(variable) for variable in model.optimizer.variables])
