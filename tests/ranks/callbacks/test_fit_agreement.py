"""Ranks whose `fit` is not the same: one error on all of them, of one class, before the first step where possible."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import BroadcastGlobalVariablesCallback, DataParallel, MetricAverageCallback
from tfdist.errors import MismatchError

BATCH = 4


def samples(batches):
    x = np.random.default_rng(tfdist.rank()).normal(size=(BATCH * batches, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def new_model(**kwargs):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", **kwargs)
    return model


def plugin():
    return [DataParallel()]


def explicit():
    return [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]


def fails_alike(call):
    """Runs a call that must fail on every rank alike, for both who catch tfdist's error and TensorFlow's; the text."""
    with pytest.raises(MismatchError) as caught:
        call()
    assert isinstance(caught.value, tf.errors.FailedPreconditionError)
    texts = tfdist.allgather_object(str(caught.value), name="texts")
    assert len(set(texts)) == 1, texts
    return texts[0]


CASES = {
    "initial_epoch is 0 on rank": lambda odd: {"initial_epoch": 2 * odd},
    "epochs is 3 on rank": lambda odd: {"epochs": 3 + odd},
    "the number of steps of an epoch is 2 on rank": lambda odd: {"data": samples(2 + odd)},
    "validation_data is not given on rank": lambda odd: {"validation_data": samples(1) if odd else None},
    "validation_freq is 1 on rank": lambda odd: {"validation_data": samples(1), "validation_freq": 1 + odd},
    "learning rate is empty on rank": lambda odd: {"more": [keras.callbacks.EarlyStopping("loss")] * odd},
    "run collectives is": lambda odd: {"more": [tfdist.callbacks.Throughput()] * odd},
    "run collectives is ": lambda odd: {"more": [tfdist.callbacks.ModelCheckpoint("x.keras")] * odd},
}


@pytest.mark.parametrize("callbacks", [plugin, explicit])
def test_difference_is_found_before_the_first_step(world, callbacks):
    model = new_model()
    before = model.get_weights()
    for expected, arguments in CASES.items():
        given = {"data": samples(2), "epochs": 3, "more": [], **arguments(int(tfdist.rank() == world - 1))}
        (x, y), more = given.pop("data"), given.pop("more")
        text = fails_alike(
            lambda given=given, x=x, y=y, more=more: model.fit(
                x, y, batch_size=BATCH, verbose=0, callbacks=[*callbacks(), *more], **given
            )
        )
        assert expected in text, text
    for array, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_what_only_one_rank_may_have(world):
    """Loggers, what is wrapped for rank 0, and numbers of samples of the same number of batches."""
    rank = tfdist.rank()
    more = [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)] if rank == 0 else []
    wrapped = tfdist.callbacks.RankZero(keras.callbacks.EarlyStopping("val_loss", patience=9))
    x, y = samples(2)
    history = new_model().fit(
        *(x[: len(x) - rank % 2], y[: len(x) - rank % 2]),
        batch_size=BATCH,
        epochs=2,
        verbose=0,
        validation_data=samples(1 + rank),
        callbacks=[*more, DataParallel(), wrapped],
    )
    assert len(set(tfdist.allgather_object(history.history["val_loss"][-1], name="losses"))) == 1


def test_files_of_several_ranks_are_warned_of(world, shared_tmp_path, warnings_of_tfdist):
    """By rank 0; not where one rank writes, nor each its own."""
    x, y = samples(1)
    own = keras.callbacks.CSVLogger(shared_tmp_path / f"{tfdist.rank()}.csv")
    of_one = [keras.callbacks.ModelCheckpoint(shared_tmp_path / "x.keras")] * (tfdist.rank() == 0)
    new_model().fit(x, y, verbose=0, callbacks=[DataParallel(), own, *of_one])
    assert not [line for line in warnings_of_tfdist if "writes" in line]
    shared = keras.callbacks.CSVLogger(shared_tmp_path / "log.csv")
    new_model().fit(x, y, verbose=0, callbacks=[DataParallel(), MetricAverageCallback(), shared])
    told = [
        line for line in warnings_of_tfdist if f"writes {shared_tmp_path / 'log.csv'} on ranks 0-{world - 1}" in line
    ]
    assert len(told) == (tfdist.rank() == 0)
    assert all("tfdist.callbacks.RankZero(CSVLogger(...))" in line for line in told)


def batches(count):
    x, y = samples(count)
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


@pytest.mark.parametrize("callbacks", [plugin, explicit])
def test_rank_whose_data_ends_before_that_of_others(world, callbacks):
    count = 2 + (tfdist.rank() == world - 1)
    text = fails_alike(lambda: new_model().fit(batches(count), epochs=2, verbose=0, callbacks=callbacks()))
    ended = "rank 0 has" if world == 2 else f"ranks 0-{world - 2} have"
    assert f"{ended} ended epoch 1 after 2 batches, rank {world - 1} is still training (" in text
    assert "tfdist.shard(dataset)" in text


def test_restored_epoch_is_found_at_the_end_of_the_first(world):
    """A callback behind ours that only one rank restores from."""

    class Restores(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model._initial_epoch = 1 if tfdist.rank() == 0 else 0

    callbacks = [DataParallel(), Restores()]
    text = fails_alike(lambda: new_model().fit(*samples(2), batch_size=BATCH, epochs=3, verbose=0, callbacks=callbacks))
    assert "rank 0 has ended epoch 2 after 2 batches" in text
    assert "ended epoch 1 after 2 batches" in text
    assert "initial_epoch" in text


@pytest.mark.ranks(2)
def test_example_of_the_page(capsys):
    page = (Path(__file__).resolve().parents[3] / "docs" / "messages.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(example, "messages.md", "exec"), {})
    shown = capsys.readouterr().out.strip()
    assert f"tfdist.errors.MismatchError: {shown.partition(': dataset')[0]}" in page


class Differs(keras.layers.Layer):
    """Calls another collective on the last rank."""

    def call(self, x):
        return tfdist.allreduce(x, name="odd" if tfdist.rank() == tfdist.size() - 1 else "even")


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_error_in_a_step_is_of_one_class(run_eagerly):
    model = keras.Sequential([keras.Input((3,)), Differs(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=run_eagerly)
    x, y = samples(1)
    calls = [
        lambda: model.fit(x, y, verbose=0, callbacks=[DataParallel()]),
        lambda: model.evaluate(x, y, verbose=0, callbacks=[MetricAverageCallback()]),
        lambda: model.train_on_batch(x, y),
    ]
    for call in calls:
        text = fails_alike(call)
        assert "called allreduce 'even'" in text
        assert "Graph execution error" not in text


def test_other_errors_of_a_step_stay_as_they_are():
    model = keras.Sequential([keras.Input((1,), dtype="int32"), keras.layers.Embedding(2, 1), keras.layers.Flatten()])
    model.compile("sgd", "mse")
    wrong = np.full((BATCH, 1), 5)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        model.train_on_batch(wrong, np.zeros((BATCH, 1)))
    assert not isinstance(caught.value, tfdist.errors.TfdistError)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("op", [tfdist.Average, tfdist.Sum], ids=["mean", "sum"])
def test_a_loss_that_is_a_sum_is_told_of(world, op, warnings_of_tfdist):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.001), op=op)
    model.compile(optimizer, keras.losses.MeanSquaredError(reduction="sum"))
    model.fit(*samples(1), verbose=0, callbacks=[DataParallel()])
    told = [line for line in warnings_of_tfdist if "MeanSquaredError has reduction='sum'" in line]
    assert len(told) == (1 if world > 1 and tfdist.rank() == 0 and op is tfdist.Average else 0)
