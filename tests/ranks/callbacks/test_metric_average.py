"""Logs are those of all ranks: equal to one process on all data, whatever each rank has seen."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

FEATURES = 3
# Samples for validation by rank: unequal, and none on rank 1. Rank 0 has two batches, so numbers of batches differ too.
VALIDATION = [12, 0, 5, 9]


class Mine(keras.metrics.Metric):
    """Not known to be additive, so its mean is weighted by samples: here the mean of y, which makes that exact."""

    def __init__(self, name="mine", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_true, "float32")))
        self.count.assign_add(keras.ops.cast(keras.ops.size(y_true), "float32"))

    def result(self):
        return self.total / self.count  # NaN where a rank has seen nothing


class Declared(Mine):
    tfdist_reduction = "sum"


def samples(count, seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, FEATURES)).astype("float32") + 0.3 * (seed % 7)
    return x, (x[:, :1] + generator.normal(size=(count, 1)) > 0.5).astype("float32")


def validation_of(rank):
    return samples(VALIDATION[rank], 50 + rank)


def all_validation(world):
    parts = [validation_of(rank) for rank in range(world)]
    return tuple(np.concatenate([part[k] for part in parts]) for k in (0, 1))


def new_model(optimizer="sgd", metrics=(), **kwargs):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer, loss="binary_crossentropy", metrics=list(metrics), **kwargs)
    return model


def every_metric():
    return [
        "accuracy",
        keras.metrics.AUC(name="auc"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.F1Score(threshold=0.5, name="f1"),
        keras.metrics.R2Score(name="r2"),
        keras.metrics.BinaryIoU(name="iou"),
        Mine(),
        Declared(name="declared"),
    ]


def dataset(x, y, batch=8):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


class OnlyHere(keras.callbacks.Callback):
    """Keeps the logs it is given."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("how", [{}, {"run_eagerly": True}, {"steps_per_execution": 4}], ids=["graph", "eager", "four"])
def test_evaluate_equals_one_process(world, how):
    """Rank 1 has no sample at all."""
    model = new_model(metrics=every_metric(), **how)
    logs = model.evaluate(
        dataset(*validation_of(tfdist.rank())), verbose=0, return_dict=True, callbacks=[MetricAverageCallback()]
    )
    expected = new_model(metrics=every_metric()).evaluate(dataset(*all_validation(world)), verbose=0, return_dict=True)
    assert set(logs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len({str(sorted((k, np.asarray(v).tobytes()) for k, v in o.items())) for o in gathered(logs)}) == 1


def gathered(logs):
    return tfdist.allgather_object({name: np.asarray(value) for name, value in logs.items()}, name="logs of every rank")


@pytest.mark.ranks(1, 2, 3)
def test_fit_equals_one_process_for_every_callback_of_the_list(world):
    """A rate of zero: the model stays, so the logs of training are those of one process on all data."""
    before, after = OnlyHere(), OnlyHere()
    model = new_model(keras.optimizers.SGD(0.0), every_metric())
    history = model.fit(
        dataset(*samples(16, tfdist.rank()), batch=4),
        validation_data=dataset(*validation_of(tfdist.rank())),
        epochs=2,
        verbose=0,
        callbacks=[before, MetricAverageCallback(), after],
    ).history
    parts = [samples(16, rank) for rank in range(world)]
    train = tuple(np.concatenate([part[k] for part in parts]) for k in (0, 1))
    plain = new_model(metrics=every_metric())
    expected = plain.evaluate(dataset(*train), verbose=0, return_dict=True)
    of_validation = plain.evaluate(dataset(*all_validation(world)), verbose=0, return_dict=True)
    expected |= {f"val_{name}": value for name, value in of_validation.items()}
    for seen in (*before.epochs, *after.epochs):
        for name, value in expected.items():
            np.testing.assert_allclose(seen[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert history["val_auc"] == [seen["val_auc"] for seen in before.epochs]


class Puts(keras.callbacks.Callback):
    """What an evaluation of the script's own might put into the logs."""

    def on_epoch_end(self, epoch, logs=None):
        logs |= {"val_own": 0.1 + tfdist.rank(), "alike": 0.1, "text": str(tfdist.rank()), "lists": [[1], [2, 3]]}
        if tfdist.rank() == 0:
            logs["alone"] = 5.0


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("first", [True, False])
def test_numbers_that_callbacks_before_it_have_put_there(world, first):
    own = [Puts(), MetricAverageCallback()]
    model = new_model(keras.optimizers.SGD(0.0))
    logs = model.fit(
        dataset(*samples(8, tfdist.rank()), batch=4), verbose=0, callbacks=own if first else own[::-1]
    ).history
    mean = 0.1 + (world - 1) / 2 if first else 0.1 + tfdist.rank()
    np.testing.assert_allclose(logs["val_own"], [mean], rtol=1e-12)
    assert logs["alike"] == [0.1] and logs["text"] == [str(tfdist.rank())]
    assert logs.get("alone") == ([5.0] if tfdist.rank() == 0 else None)


@pytest.mark.ranks(2, 3)
def test_metrics_of_several_outputs(world):
    """Keras puts the name of the output before that of the metric; a metric of one's own is averaged all the same."""
    keras.utils.set_random_seed(3)
    entry = keras.Input((FEATURES,))
    outputs = [keras.layers.Dense(1, name="left")(entry), keras.layers.Dense(1, name="right")(entry)]
    model = keras.Model(entry, outputs)
    model.compile("sgd", loss="mse", metrics=[[Mine(), "mae"], [Mine(name="other")]])
    x, y = samples(4 * (1 + tfdist.rank()), 10 + tfdist.rank())
    logs = model.evaluate(x, [y, 2 * y], verbose=0, return_dict=True, callbacks=[MetricAverageCallback()])
    ys = np.concatenate([samples(4 * (1 + rank), 10 + rank)[1] for rank in range(world)])
    np.testing.assert_allclose(logs["left_mine"], ys.mean(), rtol=1e-5)
    np.testing.assert_allclose(logs["right_other"], 2 * ys.mean(), rtol=1e-5)


class OwnLogs(keras.Model):
    """Steps that return something that is no metric."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        x, _ = data
        return {"own": keras.ops.mean(x)}


def test_logs_of_ones_own_are_weighted_by_samples(world):
    keras.utils.set_random_seed(3)
    model = OwnLogs()
    model.build((None, FEATURES))
    model.compile("sgd", loss="mse")
    count = 2 + 3 * tfdist.rank()
    x = np.full((count, FEATURES), float(tfdist.rank() + 1), "float32")
    logs = model.evaluate(x, x[:, :1], verbose=0, return_dict=True, callbacks=[MetricAverageCallback()])
    counts = np.array([2 + 3 * rank for rank in range(world)])
    np.testing.assert_allclose(logs["own"], (counts * np.arange(1, world + 1)).sum() / counts.sum(), rtol=1e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_counts_of_whole_and_of_shared_validation_data(world, whole):
    """A sample that all ranks have seen counts once."""
    metrics = [keras.metrics.TruePositives(name="hits"), keras.metrics.AUC(name="auc")]
    x, y = samples(12 * world, 3)
    mine = (x, y) if whole else (x[tfdist.rank() :: world], y[tfdist.rank() :: world])
    callbacks = [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
    model = new_model("sgd", metrics)
    history = model.fit(x[:4], y[:4], validation_data=mine, verbose=0, callbacks=callbacks).history
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    for name in ("loss", "hits", "auc"):
        np.testing.assert_allclose(history[f"val_{name}"][-1], expected[name], rtol=1e-6)


def test_early_stopping_and_plateau_act_on_the_same_epoch(world):
    """By its own shard, rank 0 gets better for ever and the others get worse from the first epoch."""
    model = new_model(keras.optimizers.SGD(0.5))
    x = np.ones((8, FEATURES), "float32")
    good, bad = np.ones((8, 1), "float32"), np.zeros((8, 1), "float32")
    shard = (x[:2], good[:2]) if tfdist.rank() == 0 else (x, bad)
    stopping = keras.callbacks.EarlyStopping(patience=3)
    plateau = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.0)
    history = model.fit(
        x,
        good,
        batch_size=4,
        validation_data=shard,
        epochs=12,
        verbose=0,
        callbacks=[
            stopping,
            plateau,
            BroadcastGlobalVariablesCallback(0),
            MetricAverageCallback(),
        ],
    ).history
    seen = tfdist.allgather_object(
        (stopping.stopped_epoch, history["val_loss"], history["learning_rate"]), name="what the ranks did"
    )
    assert all(other == seen[0] for other in seen)
    assert stopping.stopped_epoch == 3
    assert history["learning_rate"][-1] < history["learning_rate"][0]


def test_nan_on_one_rank_stops_all_at_the_same_batch(world):
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    x, y = samples(24, tfdist.rank())
    if tfdist.rank() == world - 1:
        x[9] = np.nan
    steps = []
    model.fit(
        x,
        y,
        batch_size=4,
        shuffle=False,
        verbose=0,
        epochs=3,
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            MetricAverageCallback(),
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch)),
        ],
    )
    assert steps == [0, 1, 2]


def test_a_bare_evaluate_is_local(world):
    """One rank may evaluate by itself, inside a callback and after an interrupted fit: nobody waits for anybody."""
    model = new_model(metrics=["accuracy"])
    x, y = samples(8, tfdist.rank())
    alone = []

    def evaluate(*_, **__):
        if tfdist.rank() == world - 1:
            alone.append(model.evaluate(x, y, verbose=0))

    callbacks = [
        MetricAverageCallback(drift="off"),
        keras.callbacks.LambdaCallback(on_epoch_end=evaluate, on_train_batch_end=evaluate),
    ]
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    assert len(alone) == (6 if tfdist.rank() == world - 1 else 0)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    callbacks[1] = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)
    evaluate()


def test_local_states_are_restored(world):
    model = new_model(metrics=["accuracy"])
    x, y = samples(4 + 2 * tfdist.rank(), tfdist.rank())
    model.evaluate(x, y, verbose=0, callbacks=[MetricAverageCallback()])
    assert float(model.metrics[0].count) == 4 + 2 * tfdist.rank()


def test_device_is_refused(world):
    with pytest.raises(tfdist.errors.ConfigError, match="device='/gpu:0'"):
        MetricAverageCallback(device="/gpu:0")


def test_an_unknown_declaration_is_refused(world):
    class Wrong(Mine):
        tfdist_reduction = "max"

    model = new_model(metrics=[Wrong()])
    x, y = samples(4, tfdist.rank())
    with pytest.raises(tfdist.errors.ConfigError, match='must be "sum"'):
        model.evaluate(x, y, verbose=0, callbacks=[MetricAverageCallback()])


class Nested(keras.Model):
    """Its step returns what the metrics of a compiled model are called in `metrics`: one of them is a group."""

    def train_step(self, data):
        super().train_step(data)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.ranks(1, 2, 3)
def test_logs_of_a_step_that_returns_all_metrics(world):
    generator = np.random.default_rng(tfdist.rank())
    x = generator.normal(size=(8 + 4 * tfdist.rank(), 3)).astype("float32")
    inputs = keras.Input((3,))
    model = Nested(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.0), loss="mse", metrics=["mae"])
    steps = 2
    history = model.fit(
        x, x[:, :1], batch_size=len(x) // steps, verbose=0, callbacks=[tfdist.callbacks.DataParallel()]
    ).history
    errors = tfdist.allgather(np.abs(model.predict(x, verbose=0) - x[:, :1]), name="errors").numpy()
    assert history["mae"] == pytest.approx([errors.mean()], rel=1e-5)
    assert history["loss"] == pytest.approx([(errors**2).mean()], rel=1e-5)
