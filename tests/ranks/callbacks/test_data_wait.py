"""Data that the ranks share is missed by all of them together: rank 0 logs it."""

import logging

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.data_service.trainer import watch


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("lost", [0, 2])
def test_lost_elements_of_a_shared_pass(world, caplog, monkeypatch, lost):
    """Each epoch is a pass, of which every rank reads another part."""
    monkeypatch.setattr(watch, "_watches", [])
    mine = 3 + tfdist.rank()
    everything = sum(3 + rank for rank in range(world))
    watched = watch.Watch(watch.new_name("shared"), "host:1", expected=everything + lost, shared=True)
    # As a service has it, of unknown length, which Keras reads to the end.
    rows = tf.data.Dataset.range(mine).filter(lambda _: True).map(lambda x: (tf.zeros([4, 2]), tf.zeros([4, 1])))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING, "tfdist"):
        callbacks = [tfdist.callbacks.DataWait()]
        model.fit(watch.watch(rows, watched), epochs=2, callbacks=callbacks, verbose=0)
    said = [record.getMessage() for record in caplog.records if "on its way from the data service" in record.message]
    if not lost or tfdist.rank() or world == 1:  # alone it cannot know whether others share the pass
        assert said == []
    else:
        assert len(said) == 2
        assert f"pass 2: {everything + lost} expected, {everything} seen, 2 lost" in said[1]
