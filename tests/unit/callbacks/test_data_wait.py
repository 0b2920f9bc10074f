"""The logs of an epoch say how long training waited for data; what was lost is logged."""

import collections
import importlib
import logging

import keras
import pytest
import tensorflow as tf

from tfdist import callbacks
from tfdist.data_service import measure_wait
from tfdist.data_service.trainer import watch

SLOW_SECONDS = 0.03
STEPS = 6


@pytest.fixture(autouse=True)
def nothing_watched(monkeypatch):
    monkeypatch.setattr(watch, "_watches", [])


def rows(seconds, steps=STEPS):
    # Of a known length, Keras would not draw the end, and a prefetch that TensorFlow adds would come to it at any time.
    numbers = tf.data.Dataset.range(steps).filter(lambda _: True)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(numbers),
        sleep_microseconds=round(seconds * 1e6),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    slow = tf.data.experimental.from_variant(variant, numbers.element_spec)
    return slow.map(lambda x: (tf.fill([4, 2], tf.cast(x, tf.float32)), tf.zeros([4, 1])))


def fit(dataset, before=(), after=(), **settings):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    added = [*before, callbacks.DataWait(), *after]
    return model.fit(dataset, epochs=2, callbacks=added, verbose=0, **settings).history


def test_slow_data_is_most_of_the_second_epoch():
    history = fit(measure_wait(rows(SLOW_SECONDS)))
    # A few milliseconds of each pause pass before anybody waits.
    assert all(seconds >= STEPS * SLOW_SECONDS / 2 for seconds in history["data_wait_seconds"])
    # Compilation takes most of the first epoch.
    assert 0 < history["data_wait_share"][0] <= 1
    assert 0.2 < history["data_wait_share"][1] <= 1


def test_data_that_is_there_is_not_waited_for():
    fast = measure_wait(rows(0).cache().prefetch(STEPS))
    list(fast)
    history = fit(fast)
    assert history["data_wait_seconds"][1] < STEPS * SLOW_SECONDS


def test_validation_is_left_out():
    history = fit(measure_wait(rows(0)), validation_data=measure_wait(rows(SLOW_SECONDS)))
    assert history["data_wait_seconds"][1] < STEPS * SLOW_SECONDS


def test_lost_data_is_logged_at_the_end_of_its_epoch(caplog):
    watched = watch.Watch(watch.new_name("lossy"), "host:1", expected=STEPS + 2)
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(watch.watch(rows(0), watched))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert [f"pass {number}: 8 expected, 6 seen, 2 lost, 0 doubled" in messages[number - 1] for number in (1, 2)]


def test_whole_data_is_not_logged(caplog):
    watched = watch.Watch(watch.new_name("whole"), "host:1", expected=STEPS)
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(watch.watch(rows(0), watched))
    assert caplog.records == []


@pytest.fixture
def summary_scalar(monkeypatch):
    """Where the package tensorboard is not installed, TensorFlow lacks this one function; files it writes itself."""

    def scalar(name, data, step):
        return tf.summary.write(name, tf.constant(data, tf.float32), step)

    try:
        importlib.import_module("tensorboard.summary.v2")
    except ImportError:
        # Keras imports it by this name, which makes a module other than the attribute that TensorFlow begins with.
        monkeypatch.setattr(importlib.import_module("tensorflow.summary"), "scalar", scalar)


def scalars_of(folder):
    """What the event files below a folder hold of our logs, by name, in the order of the epochs."""
    found = collections.defaultdict(list)
    for path in sorted(folder.rglob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            for value in tf.compat.v1.Event.FromString(record).summary.value:
                if "data_wait" in value.tag:
                    found[value.tag].append(float(tf.make_ndarray(value.tensor)))
    return found


@pytest.mark.usefixtures("summary_scalar")
def test_tensorboard_shows_what_the_logs_have(tmp_path):
    history = fit(measure_wait(rows(SLOW_SECONDS)), after=[keras.callbacks.TensorBoard(tmp_path)])
    names = ("data_wait_seconds", "data_wait_share")
    expected = {f"epoch_{name}": pytest.approx(history[name], rel=1e-6) for name in names}
    assert scalars_of(tmp_path) == expected
    assert min(history["data_wait_seconds"]) > 0


@pytest.mark.usefixtures("summary_scalar")
def test_tensorboard_before_it_does_not_see_it(tmp_path):
    """Why it stands before the callbacks that write logs."""
    fit(measure_wait(rows(0)), before=[keras.callbacks.TensorBoard(tmp_path)])
    assert list(tmp_path.rglob("events.*"))
    assert scalars_of(tmp_path) == {}
