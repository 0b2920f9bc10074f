"""Models whose weights are not there, or not known to be, before the first step: trained as one process would."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore, BroadcastGlobalVariablesCallback, DataParallel, ModelCheckpoint
from tfdist.testing.parity import assert_close, assert_identical_on_ranks
from tfdist.training.model_build import is_complete, make_weights

FEATURES, BATCH, STEPS, RATE = 4, 2, 4, 0.05


class NoCall(keras.Model):
    """As keras.io writes a VAE or GAN: the step is all that says what belongs together."""

    def __init__(self, *layers):
        super().__init__()
        self.net = keras.Sequential([*layers, keras.layers.Dense(3), keras.layers.Dense(1)])
        self.traces = 0

    def outputs_of(self, x, y):
        return self.net(x)

    def train_step(self, data):
        x, y = data
        self.traces += 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.outputs_of(x, y) - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


class MadeInTheStep(NoCall):
    def outputs_of(self, x, y):
        if not hasattr(self, "late"):
            self.late = keras.layers.Dense(2)
        return self.net(self.late(x))


class TakesTargets(NoCall):
    def call(self, x, y):
        return self.net(tf.concat([x, 0 * y], axis=1))

    outputs_of = call


class OfDict(keras.Model):
    """Built by its first call; also of tuples."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.first(x["a"]) + self.first(x["b"]))


class OfTuple(OfDict):
    def call(self, x):
        return super().call({"a": x[0], "b": x[1]})


class OfRagged(OfDict):
    def call(self, x):
        return self.last(self.first(keras.ops.expand_dims(tf.reduce_sum(x, axis=1), -1)))


def no_call_but_built():
    return NoCall(keras.Input((FEATURES,)))


def said_to_be_built():
    model = NoCall()
    model.built = True
    return model


def lazy():
    return keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])


def numbers(rank):
    x = np.random.default_rng(70 + rank).normal(size=(STEPS * BATCH, FEATURES)).astype("float32")
    return x, np.sin(x[:, :1] + rank).astype("float32")


def ragged(x):
    return tf.RaggedTensor.from_row_lengths(x.ravel(), [1 + i % 2 * (2 * FEATURES - 2) for i in range(len(x))])


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.parts = x, y, size

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        x, y, size = self.parts
        return x[index * size : (index + 1) * size], y[index * size : (index + 1) * size]


def of_features(change):
    return lambda x, y, size: {"x": tf.data.Dataset.from_tensor_slices((change(x), y)).batch(size)}


plain = of_features(lambda x: x)
KINDS = {
    "no call, built": (no_call_but_built, plain),
    "no call, lazy": (NoCall, plain),
    "no call, said to be built": (said_to_be_built, plain),
    "layers made in the step": (MadeInTheStep, plain),
    "call takes targets": (TakesTargets, plain),
    "dict": (OfDict, of_features(lambda x: {"a": x, "b": 2 * x})),
    "tuple": (OfTuple, of_features(lambda x: (x, 2 * x))),
    "ragged": (OfRagged, of_features(ragged)),
    "sparse": (lazy, of_features(tf.sparse.from_dense)),
    "arrays": (NoCall, lambda x, y, size: {"x": x, "y": y, "batch_size": size, "shuffle": False}),
    "generator": (
        lazy,
        lambda x, y, size: {
            "x": (Batches(x, y, size)[i] for i in range(STEPS)),
            "steps_per_epoch": STEPS,
        },
    ),
    "PyDataset": (NoCall, lambda x, y, size: {"x": Batches(x, y, size), "shuffle": False}),
}


def compiled(make, seed, rate=RATE, **kwargs):
    keras.utils.set_random_seed(seed)
    model = make()
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss="mse", **kwargs)
    return model


@pytest.mark.ranks(1, 2, 3)
def test_as_one_process(world):
    """Each kind of model and data: rank 0's initial weights, no batch lost, at the scaled rate."""
    by_rank = [numbers(rank) for rank in range(world)]
    whole = [
        np.concatenate([part[k][s * BATCH : (s + 1) * BATCH] for s in range(STEPS) for part in by_rank]) for k in (0, 1)
    ]
    for kind, (make, data) in KINDS.items():
        model = compiled(make, seed=tfdist.rank())
        model.fit(**data(*by_rank[tfdist.rank()], BATCH), verbose=0, callbacks=[DataParallel()])
        assert_identical_on_ranks(model.get_weights(), kind)
        if tfdist.rank() != 0 or kind == "ragged":  # whose rows differ in length by place
            continue
        reference = compiled(make, seed=0, rate=RATE * world)
        reference.fit(**data(*whole, BATCH * world), verbose=0)
        assert_close(model.get_weights(), reference.get_weights())
        assert len(model.weights) == len(reference.weights), kind


@pytest.mark.ranks(1, 2)
def test_resumed_before_the_first_step(world, shared_tmp_path):
    """A model without `call` and one that is built in its first step go on with the bits of one that was not ended."""
    for make, at, freq in ((NoCall, (1, 2), 1), (lazy, (1, 0), "epoch")):
        data = plain(*numbers(tfdist.rank()), BATCH)
        whole = compiled(make, seed=tfdist.rank())
        whole.fit(**data, epochs=3, verbose=0, callbacks=[DataParallel()])
        folder = shared_tmp_path / make.__name__
        with pytest.raises(KeyboardInterrupt):
            fit_again(compiled(make, seed=tfdist.rank()), data, folder, freq, _Stop(at))
        model = compiled(make, seed=50 + tfdist.rank())
        with pytest.raises(KeyboardInterrupt):  # before it is built, and then again
            fit_again(model, data, folder, freq, _Stop((1, 0)))
        fit_again(model, data, folder, freq, ModelCheckpoint(str(shared_tmp_path / "m.weights.h5")))
        for mine, expected in zip(model.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, expected)
        assert int(model.optimizer.iterations) == 3 * STEPS


def fit_again(model, data, folder, freq, other):
    backup = BackupAndRestore(folder, save_freq=freq)
    return model.fit(**data, epochs=3, verbose=0, callbacks=[DataParallel(), backup, other])


class Untracked(NoCall):
    """Its step also updates what Keras does not know as a weight."""

    def __init__(self):
        super().__init__(keras.Input((FEATURES,)))
        self.scale = tf.Variable(np.random.default_rng(tfdist.rank()).normal(size=FEATURES).astype("float32"))

    @property
    def trainable_variables(self):
        return [*super().trainable_variables, self.scale]

    def outputs_of(self, x, y):
        return self.net(x * self.scale)


def test_a_variable_that_is_no_weight_of_the_model(world, monkeypatch):
    """It begins with the values of rank 0, and what makes it drift is noticed."""
    data = plain(*numbers(tfdist.rank()), BATCH)
    model = compiled(Untracked, seed=tfdist.rank())
    model.fit(**data, epochs=2, verbose=0, callbacks=[DataParallel()])
    assert_identical_on_ranks([model.scale, *model.weights])
    monkeypatch.setattr(Untracked, "train_step", _drifting_step)
    drifting = compiled(Untracked, seed=1)
    with pytest.raises(tfdist.errors.MismatchError, match="differ"):
        drifting.fit(**data, epochs=2, verbose=0, callbacks=[DataParallel()])


def _drifting_step(model, data):
    logs = NoCall.train_step(model, data)
    model.scale.assign_add(tf.fill([FEATURES], 0.1 * tfdist.rank()))
    return logs


def test_backup_without_a_step(world, shared_tmp_path):
    """As where a job was killed after its last backup: the model that has no weights yet cannot take them over."""
    data, folder = plain(*numbers(tfdist.rank()), BATCH), shared_tmp_path / "backup"

    def train():
        backup = BackupAndRestore(folder, delete_checkpoint=False)
        compiled(NoCall, seed=1).fit(**data, epochs=1, verbose=0, callbacks=[DataParallel(), backup])

    train()
    tfdist.barrier(name="trained")
    with pytest.raises(tfdist.errors.TfdistError, match="no step was trained, and the model has no weights yet"):
        train()


class _Stop(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise KeyboardInterrupt


def test_where_one_rank_is_built(world):
    """As where rank 0 has loaded a file: it waits for the others to make theirs."""
    model = compiled(lazy, seed=tfdist.rank())
    if tfdist.rank() == 0:
        model.build((None, FEATURES))
        model.weights[0].assign(np.full((FEATURES, 3), 7.0))
    first = _FirstWeights()
    callbacks = [BroadcastGlobalVariablesCallback(0), first]
    model.optimizer.learning_rate = 0.0
    model.fit(**plain(*numbers(tfdist.rank()), BATCH), verbose=0, callbacks=callbacks)
    np.testing.assert_array_equal(first.kernel, np.full((FEATURES, 3), 7.0))


class _FirstWeights(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.kernel = self.model.weights[0].numpy()


class OnlyEagerly(NoCall):
    def outputs_of(self, x, y):
        x.numpy()
        return super().outputs_of(x, y)


class OnlyEagerlyWithCall(OnlyEagerly):
    def call(self, x):
        return self.net(x)


def test_a_step_that_cannot_be_traced(world):
    """Trains where `call` makes the weights, or all are there; else the error names what is not built."""
    data = plain(*numbers(tfdist.rank()), BATCH)
    for make in (OnlyEagerlyWithCall, lambda: OnlyEagerly(keras.Input((FEATURES,)))):
        model = compiled(make, seed=tfdist.rank(), run_eagerly=True)
        model.fit(**data, verbose=0, callbacks=[DataParallel(scale_learning_rate=False)])
        assert_identical_on_ranks(model.get_weights())
    model = compiled(OnlyEagerly, seed=tfdist.rank(), run_eagerly=True)
    with pytest.raises(tfdist.errors.ConfigError, match=r"Not built: 'dense.*Build it before fit: call the model"):
        model.fit(**data, verbose=0, callbacks=[DataParallel()])


def test_an_error_of_one_rank_is_that_of_all(world):
    class Broken(NoCall):
        def outputs_of(self, x, y):
            if tfdist.rank() == world - 1:
                raise KeyError("only there")
            return super().outputs_of(x, y)

    model = compiled(Broken, seed=0)
    with pytest.raises(tfdist.errors.ConfigError, match="only there"):
        model.fit(**plain(*numbers(tfdist.rank()), BATCH), verbose=0, callbacks=[DataParallel()])


def test_weights_that_show_up_in_the_first_step(world):
    """Not found by the trace: only what ran made them."""

    class Late(NoCall):
        def __init__(self):
            super().__init__(keras.Input((FEATURES,)))

        def outputs_of(self, x, y):
            if self.traces > 0 and not hasattr(self, "late"):
                self.late = keras.layers.Dense(FEATURES)
            return self.net(self.late(x))

    model = compiled(Late, seed=0)
    with pytest.raises(tfdist.errors.ConfigError, match=r"created 2 weights .*Create them before fit"):
        model.fit(**plain(*numbers(tfdist.rank()), BATCH), verbose=0, callbacks=[DataParallel()])


def test_nothing_is_drawn_or_run(world):
    """Making the weights takes no batch, no step and no random number of the model's."""
    drawn = []

    def count(x, y):
        drawn.append(1)
        return x, y

    data = plain(*numbers(0), BATCH)["x"].map(lambda x, y: tf.py_function(count, (x, y), (tf.float32, tf.float32)))
    data = data.map(lambda x, y: (tf.ensure_shape(x, (None, FEATURES)), tf.ensure_shape(y, (None, 1))))
    model = compiled(lambda: NoCall(keras.layers.Dropout(0.5)), seed=3)
    seed = model.net.layers[0].seed_generator.state.numpy()
    assert not is_complete(model)
    make_weights(model, data.element_spec)
    assert is_complete(model)
    assert not drawn
    assert int(model.optimizer.iterations) == 0
    np.testing.assert_array_equal(model.net.layers[0].seed_generator.state.numpy(), seed)
