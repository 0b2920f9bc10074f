"""A script for Keras 2 under Keras 3: what is clear is translated with a warning, the rest says what to write."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import errors
from tfdist.alias import keras2

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")


@pytest.fixture
def translated(monkeypatch):
    """Keras with Keras 2's names, which other tests must not see."""
    optimizers = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
    monkeypatch.setattr(keras2, "_said", set())
    before = {owner: dict(vars(owner)) for owner in (*optimizers, keras.Model, keras.preprocessing.image)}
    backends = (keras.backend, keras._tf_keras.keras.backend)
    before |= {backend: dict(vars(backend)) for backend in backends}
    keras2.translate()
    yield
    for owner, names in before.items():
        for name in set(vars(owner)) - set(names):
            delattr(owner, name)
        for name, value in names.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)


def model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])


def batches():
    while True:
        yield X, Y


def test_learning_rate_by_its_old_name(translated, caplog):
    optimizer = keras.optimizers.SGD(lr=0.25, momentum=0.5)
    assert optimizer.lr is optimizer.learning_rate
    optimizer.lr = 0.5
    assert float(optimizer.learning_rate) == 0.5
    assert keras.optimizers.Adam(lr=0.125).get_config()["learning_rate"] == 0.125
    assert "Write SGD(learning_rate=0.25)." in caplog.text
    assert caplog.text.count("optimizer.lr,") == 1


def test_decay_says_what_to_write(translated):
    assert keras.optimizers.SGD(0.1, decay=0.0) is not None
    with pytest.raises(errors.ConfigError, match=r"InverseTimeDecay\(0.1, decay_steps=1, decay_rate=0.01\)"):
        keras.optimizers.SGD(0.1, decay=0.01)


@pytest.mark.parametrize("scaled", [False, True])
def test_variables_of_an_optimizer_as_a_method(translated, caplog, scaled):
    optimizer = keras.optimizers.Adam()
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
    optimizer.build(model().trainable_variables)
    assert len(optimizer.get_weights()) == (10 if scaled else 6)
    assert [id(each) for each in optimizer.variables()] == [id(each) for each in optimizer.variables]
    for array, variable in zip(optimizer.get_weights(), optimizer.variables, strict=True):
        np.testing.assert_array_equal(array, variable.numpy())
    assert "Write optimizer.variables." in caplog.text


def test_arguments_that_change_no_result(translated, caplog):
    trained = model()
    trained.compile("sgd", "mse", experimental_run_tf_function=False)
    trained.fit(X, Y, verbose=0, workers=2, use_multiprocessing=True, max_queue_size=3)
    trained.predict(X, verbose=0, workers=2)
    for name in ("experimental_run_tf_function", "workers", "use_multiprocessing", "max_queue_size"):
        assert f"argument {name} in model." in caplog.text
    with pytest.raises(TypeError, match="no_such_argument"):
        trained.fit(X, Y, no_such_argument=1)


def test_generators_train_as_fit_does(translated, caplog):
    losses = []
    for old in (True, False):
        trained = model()
        trained.compile("sgd", "mse")
        method = trained.fit_generator if old else trained.fit
        history = method(batches(), steps_per_epoch=3, epochs=2, verbose=0)
        evaluate = trained.evaluate_generator if old else trained.evaluate
        predict = trained.predict_generator if old else trained.predict
        losses.append((history.history["loss"], evaluate(batches(), steps=2, verbose=0)))
        assert predict(batches(), steps=2, verbose=0).shape == (8, 1)
    assert losses[0] == losses[1]
    assert trained.fit_generator(batches(), 2, verbose=0).epoch == [0]
    assert "Write model.fit(generator, ...)." in caplog.text
    with pytest.raises(errors.ConfigError, match=r"model\.fit_generator received 3 arguments without a name"):
        trained.fit_generator(batches(), 2, 1)


class Passes(keras.utils.PyDataset):
    """Batches of one row that count up; each pass ends with a note."""

    def __init__(self):
        super().__init__()
        self.used = []

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.used.append(index)
        return X[:1] * index, Y[:1] * 0

    def on_epoch_end(self):
        self.used.append("end")


@pytest.mark.parametrize("method", ["fit", "fit_generator"])
def test_data_begins_again_in_the_middle_of_an_epoch(translated, method, caplog):
    data, trained, steps = Passes(), model(), []
    trained.compile("sgd", "mse")
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    getattr(trained, method)(data, steps_per_epoch=2, epochs=4, verbose=0, shuffle=False, callbacks=[count])
    assert steps == [0, 1] * 4
    assert data.used[:10] == [0, 1, 2, "end", 0, 1, 2, "end", 0, 1]
    assert "began it again (steps_per_epoch=2 and 3 batches)" in caplog.text


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("split", [0.0, 0.25])
def test_arrays_begin_again_in_the_middle_of_an_epoch(translated, steps, split, caplog):
    """All epochs have the steps that were asked for, with the rows in their order; 3 are all batches."""
    rows = np.arange(8, dtype="float32")[: 8 if split else 6, None]
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, value):
            tf.py_function(lambda rows: seen.append(rows[:, 0].numpy().tolist()), [value], [])
            return value

    trained = keras.Sequential([keras.Input((1,)), Seen(), keras.layers.Dense(1)])
    trained.compile("sgd", "mse", run_eagerly=True)
    history = trained.fit(rows, rows, 2, 4, 0, steps_per_epoch=steps, shuffle=False, validation_split=split)
    passes = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    trained_on = [each for each in seen if each != [6.0, 7.0]]
    assert trained_on == [passes[number % 3] for number in range(4 * steps)]
    assert len(history.history["loss"]) == 4 and ("val_loss" in history.history) == bool(split)
    assert ("Keras 2 began them again" in caplog.text) == (steps != 3)


def test_each_pass_has_an_order_of_its_own(translated):
    """Unless `shuffle=False`: ranks that begin with the same batches would all train on these alone."""
    data, trained = Passes(), model()
    trained.compile("sgd", "mse")
    keras.utils.set_random_seed(2)
    trained.fit(data, steps_per_epoch=30, verbose=0)
    passes = [data.used[begin : begin + 3] for begin in range(0, 28, 4)]
    assert all(sorted(each) == [0, 1, 2] for each in passes) and data.used[3::4][:7] == ["end"] * 7
    assert len({tuple(each) for each in passes}) > 1


def test_data_begins_again_in_evaluation_and_prediction(translated, caplog):
    trained = model()
    trained.compile("sgd", "mse")
    data, seen = Passes(), []
    count = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: seen.append(batch))
    for steps in (None, 3):  # of epochs on arrays, which begin again too
        seen.clear()
        options = {"validation_data": data, "validation_steps": 5, "callbacks": [count]}
        trained.fit(X, Y, verbose=0, epochs=2, batch_size=2, steps_per_epoch=steps, **options)
        assert seen == [0, 1, 2, 3, 4] * 2
    fresh = model()
    fresh.compile("sgd", "mse")
    assert fresh.predict_generator(Passes(), steps=7, verbose=0).flatten().tolist() == [0, 3, 6, 0, 3, 6, 0]
    for steps, numbers in ((5, (0, 1, 2, 0, 1)), (2, (0, 1))):
        loss = fresh.evaluate_generator(Passes(), steps=steps, verbose=0)
        assert loss == pytest.approx(np.mean([(3 * number) ** 2 for number in numbers]))
    assert "began it again (validation_steps=5 and 3 batches)" in caplog.text
    assert "steps=2" not in caplog.text


@pytest.mark.parametrize("package", [keras, tf.keras], ids=["keras", "tf.keras"])
def test_values_of_variables(translated, caplog, package):
    optimizer = keras.optimizers.SGD(0.5)
    package.backend.set_value(optimizer.learning_rate, 0.25)
    assert package.backend.get_value(optimizer.learning_rate) == 0.25
    assert package.backend.get_value(0.5) == 0.5
    assert "Write variable.assign(value)." in caplog.text


def test_images_by_their_old_name(translated):
    generator = keras.preprocessing.image.ImageDataGenerator(rescale=0.5)
    assert next(generator.flow(np.ones((2, 4, 4, 1)), batch_size=2, shuffle=False)).max() == 0.5


def test_session_for_the_gpu_is_not_needed(translated, caplog):
    wanted = tf.compat.v1.ConfigProto()
    wanted.gpu_options.allow_growth = True
    wanted.gpu_options.visible_device_list = "0"
    for backend in (keras.backend, tf.keras.backend):
        backend.set_session(tf.compat.v1.Session(config=wanted))
    assert "hvd.init() pins the GPU" in caplog.text
    wanted.intra_op_parallelism_threads = 2
    with pytest.raises(errors.ConfigError, match="a session with intra_op_parallelism_threads in its ConfigProto"):
        keras.backend.set_session(tf.compat.v1.Session(config=wanted))
    with pytest.raises(errors.ConfigError, match=r"Keras 3 has no sessions.*value\.numpy\(\)"):
        keras.backend.get_session()


@pytest.mark.parametrize(("rank", "told"), [("0", 1), ("1", 0)])
def test_rank_0_tells_also_before_init(translated, monkeypatch, caplog, rank, told):
    monkeypatch.setattr(keras2.job_place, "rank", lambda: rank)
    keras.optimizers.SGD(lr=0.5)
    assert len(caplog.messages) == told


def test_translating_twice_is_translating_once(translated):
    made = keras.optimizers.Optimizer.__init__
    keras2.translate()
    assert keras.optimizers.Optimizer.__init__ is made
