"""What is noted where gradients are reduced, and what does not count as that: numbers, metrics, times."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import MetricAverageCallback, Throughput
from tfdist.ops.allreduce import reduce_figures
from tfdist.training.gradients import GradientRecord, record_of
from tfdist.world.session import session


@pytest.fixture(autouse=True)
def nothing_reduced():
    session.gradients_reduced = False


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_each_variable_has_its_record(world, wrap):
    shared, local, unused = keras.Variable([1.0, 2.0]), tf.Variable([3.0]), tf.Variable([4.0])
    assert record_of(shared) is None

    @wrap
    def step():
        x = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(shared * x) + tf.reduce_sum(local * local)
        tape = tfdist.DistributedGradientTape(tape)
        tape.register_local_source(local)
        return [g for g in tape.gradient(loss, [shared, local, unused, x]) if g is not None]

    step()
    records = [record_of(variable) for variable in (shared, shared.value, local, unused)]
    of_all = GradientRecord(tfdist.global_process_set)
    assert records == [of_all, of_all, GradientRecord(None), None]
    assert session.gradients_reduced


def test_what_counts(world):
    model = keras.Sequential([keras.Input((2,)), tfdist.SyncBatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=[keras.metrics.AUC(), keras.metrics.R2Score()])
    x, y = np.random.default_rng(tfdist.rank()).normal(size=(4, 2)), np.array([[0.0], [1], [1], [0]])
    model.fit(x, y, verbose=0, callbacks=[MetricAverageCallback(drift="off"), Throughput()])
    reduce_figures([tf.constant([1.0, 2.0])], tfdist.Sum, "figures")
    for number in (1, 2.5, np.float32(3), tf.constant(4.0)):
        tfdist.allreduce(number, op=tfdist.Sum)
    assert not session.gradients_reduced
    gradient = tf.constant([1.0, 2.0])
    for by_hand in (gradient, tf.IndexedSlices(gradient, tf.constant([0, 1]), tf.constant([2]))):
        session.gradients_reduced = False
        tfdist.allreduce(by_hand, name="by hand")
        assert session.gradients_reduced
