"""The logs of `Metrics`: what collectives cost, who is slow, the noise scale."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.callbacks import DataParallel, Metrics, metrics
from tfdist.callbacks.fit import straggler

NAMES = [f"collective_{part}seconds" for part in ("", "wait_", "exchange_", "pack_", "reduce_", "unpack_")]
BATCH, STEPS = 4, 6


def data():
    x = np.random.default_rng(tfdist.rank()).normal(size=(STEPS * BATCH, 2)).astype("float32")
    return x, x[:, :1] + 1


def make_model(loss_scaled=False, steps_per_execution=1, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    optimizer = keras.optimizers.SGD(0.01, **options)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if loss_scaled else optimizer
    model.compile(optimizer, loss="mse", steps_per_execution=steps_per_execution)
    return model


def fit(model, *callbacks, epochs=2):
    x, y = data()
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=list(callbacks), **options).history


@pytest.mark.ranks(1, 2, 3)
def test_logs(world):
    logs = fit(make_model(), DataParallel(), Metrics())
    for epoch in (0, 1):
        parts = [logs[name][epoch] for name in NAMES]
        assert parts[0] > 0
        assert 0 <= sum(parts[1:]) <= parts[0]
        assert world == 1 or parts[1] > 0
        assert logs["straggler_rank"][epoch] in range(world)
        assert 0 <= logs["straggler_seconds"][epoch] <= parts[0] * world
    assert len(set(tfdist.allgather_object(str(logs), name="logs"))) == 1
    assert "gradient_noise_scale" not in logs


@pytest.mark.ranks(1)
def test_a_rank_that_becomes_rank_0_writes_from_then_on(world, shared_tmp_path, monkeypatch):
    """As when rank 0 is lost; before, it makes no file."""

    class Renumbered:
        rank = staticmethod(lambda: 1)
        __getattr__ = staticmethod(lambda name: getattr(tfdist, name))

    place, files = Renumbered(), []

    def lose(epoch, logs):
        files.append(len(list(shared_tmp_path.iterdir())))
        if epoch == 1:
            place.rank = lambda: 0

    monkeypatch.setattr(metrics, "tfdist", place)
    watch = keras.callbacks.LambdaCallback(on_epoch_begin=lose)
    fit(make_model(), DataParallel(), watch, Metrics(str(shared_tmp_path)), epochs=3)
    (file,) = shared_tmp_path.iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(file)))
    assert files == [0, 0, 1]
    assert {event.step for event in events if event.summary.value} == {1, 2}


@pytest.mark.ranks(1, 2)
def test_tensorboard_gets_the_same_numbers_from_rank_0(world, shared_tmp_path):
    logs = fit(make_model(), DataParallel(), Metrics(str(shared_tmp_path)))
    if tfdist.rank() != 0:  # whose callback may not be closed yet
        return
    (file,) = shared_tmp_path.iterdir()
    written = {
        (value.tag, event.step): float(tf.make_ndarray(value.tensor))
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    for name in (*NAMES, "straggler_rank", "straggler_seconds"):
        for epoch in (0, 1):
            np.testing.assert_allclose(written[f"tfdist/{name}", epoch], logs[name][epoch], rtol=1e-6)


class Late(keras.callbacks.Callback):
    """On the last rank: begins each step after all others have begun it, and then does more before it."""

    def __init__(self, folder, wait_until):
        super().__init__()
        self.folder, self.wait_until = folder, wait_until

    def on_train_batch_begin(self, batch, logs=None):
        rank, last = tfdist.rank(), tfdist.size() - 1
        (self.folder / f"{batch}-{rank}").touch()
        if rank < last:
            return
        self.wait_until(lambda: all((self.folder / f"{batch}-{other}").exists() for other in range(last)))
        end = tf.timestamp() + 0.3
        while tf.timestamp() < end:
            np.linalg.svd(np.ones((20, 20)))


@pytest.mark.ranks(2, 3)
def test_the_slow_rank_is_named(world, warnings_of_tfdist, monkeypatch, shared_tmp_path, wait_until):
    monkeypatch.setattr(metrics, "_LEAST_WARNED_SECONDS", 0)
    model = make_model()
    fit(model, DataParallel(), epochs=1)  # traces the step, which takes one rank longer than another
    logs = fit(model, DataParallel(), Metrics(straggler_share=0.05), Late(shared_tmp_path, wait_until), epochs=1)
    assert logs["straggler_rank"] == [world - 1]
    assert logs["straggler_seconds"][0] > 0
    named = [
        line for line in warnings_of_tfdist if f"for rank {world - 1}, the straggler. Check what it shares" in line
    ]
    assert len(named) == (1 if tfdist.rank() == 0 else 0)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("seconds", "warned"), [(0.9, 0), (1.1, 1)])
def test_less_than_a_second_is_no_reason_to_warn(world, warnings_of_tfdist, monkeypatch, seconds, warned):
    monkeypatch.setattr(straggler, "find", lambda waits: straggler.Straggler(1, seconds))
    logs = fit(make_model(), DataParallel(), Metrics(straggler_share=1e-6), epochs=1)
    assert logs["straggler_seconds"] == [seconds]
    named = [line for line in warnings_of_tfdist if "for rank 1, the straggler. Check what it shares" in line]
    assert len(named) == (warned if tfdist.rank() == 0 else 0)


def noise_of(gradients, batch):
    """By hand, from the gradients of each update and rank; an average with decay 0.5."""
    ranks = gradients.shape[1]
    small = (gradients**2).sum(-1).mean(1)
    big = (gradients.mean(1) ** 2).sum(-1)
    weights = 0.5 ** np.arange(len(gradients))[::-1]
    small, big = (np.average(norms, weights=weights) for norms in (small, big))
    squared_norm = (ranks * big - small) / (ranks - 1)
    trace = (small - big) / (1 / batch - 1 / (batch * ranks))
    return trace / squared_norm


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("loss_scaled", "accumulated", "steps_per_execution"),
    [(False, 1, 1), (True, 1, 1), (False, 2, 1), (True, 3, 1), (False, 1, 4)],
)
def test_noise_scale_equals_that_by_hand(world, loss_scaled, accumulated, steps_per_execution):
    """With a rate of 0 the gradients of every step are known."""
    accumulates = {"gradient_accumulation_steps": accumulated if accumulated > 1 else None}
    model = make_model(loss_scaled, steps_per_execution, **accumulates)
    model.optimizer.learning_rate = 0.0
    x, y = data()
    gradients = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        inputs = np.hstack([x[rows], np.ones((BATCH, 1), "float32")])
        error = inputs @ np.array([[1.0], [1.0], [0.0]]) - y[rows]
        gradients.append(2 * (inputs * error).mean(0))
    updates = np.array(gradients).reshape(-1, accumulated, 3).mean(1)
    by_rank = np.array(tfdist.allgather_object(updates, name="gradients")).swapaxes(0, 1)
    expected = noise_of(by_rank, BATCH * accumulated)
    assert expected > 0
    logs = fit(model, DataParallel(), Metrics(gradient_noise_scale=True, decay=0.5), epochs=1)
    np.testing.assert_allclose(logs["gradient_noise_scale"], [expected], rtol=1e-3)


@pytest.mark.ranks(2)
def test_noise_scale_needs_a_step_traced_with_it(world):
    """A model that was trained before is traced again, and trained once more without, not."""
    model = make_model()
    fit(model, DataParallel(), epochs=1)
    first = fit(model, DataParallel(), Metrics(gradient_noise_scale=True), epochs=1)
    assert np.isfinite(first["gradient_noise_scale"]).all()
    assert "gradient_noise_scale" not in fit(model, DataParallel(), Metrics(), epochs=1)


@pytest.mark.ranks(1, 2)
def test_refusals(world):
    with pytest.raises(errors.ConfigError, match="straggler_share must be a number greater than 0; received 0"):
        Metrics(straggler_share=0)
    with pytest.raises(errors.ConfigError, match="decay"):
        Metrics(gradient_noise_scale=True, decay=1.0)
    text = "after DataParallel" if world > 1 else "this job has one"
    with pytest.raises(errors.ConfigError, match=text):
        Metrics(gradient_noise_scale=True).set_model(make_model())
    if world > 1:
        model = make_model()
        model.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(), op=tfdist.Adasum), loss="mse")
        with pytest.raises(errors.ConfigError, match="op=Adasum"):
            Metrics(gradient_noise_scale=True).set_model(model)
