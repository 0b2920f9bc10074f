"""Collectives between steps have the same names in every epoch: TensorFlow keeps a kernel for each name, for ever."""

import logging

import keras
import numpy as np
import pytest

import tfdist
from tfdist.ops.graph import call


def test_a_longer_fit_has_no_more_names(world, shared_tmp_path):
    def fit(epochs):
        x = np.random.default_rng(tfdist.rank()).normal(size=(8, 2)).astype("float32")
        callbacks = [
            tfdist.callbacks.DataParallel(),
            tfdist.callbacks.BackupAndRestore(shared_tmp_path / "backup", save_freq=2),
            tfdist.callbacks.ModelCheckpoint(shared_tmp_path / "model.keras"),
            tfdist.callbacks.Throughput(),
        ]
        data = (x, x[:, :1])
        model.fit(*data, batch_size=2, epochs=epochs, validation_data=data, verbose=0, callbacks=callbacks)
        return frozenset(call._names)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae"])
    assert fit(2) == fit(5)


def test_a_script_with_a_name_for_each_step_is_told(world, monkeypatch, caplog):
    monkeypatch.setattr(call, "MOST_NAMES", 3)
    monkeypatch.setattr(call, "_names", set())
    with caplog.at_level(logging.WARNING, "tfdist"):
        for step in range(6):
            tfdist.allreduce(1.0, name=f"step {step % 2}")
        assert caplog.records == []
        for step in range(6):
            tfdist.allreduce(1.0, name=f"step {step}")
    (record,) = caplog.records
    assert "under 3 names, of which each keeps some 40 kB" in record.getMessage()
    assert "'step 2'" in record.getMessage()


@pytest.mark.ranks(2)
def test_a_barrier_keeps_nothing_of_its_name(world):
    before = frozenset(call._names)
    for step in range(3):
        tfdist.barrier(name=f"barrier {step}")
    assert call._names == before
    with pytest.raises(
        tfdist.errors.MismatchError, match=r"rank 0 called barrier 'of rank 0', rank 1 called barrier 'of rank 1'"
    ):
        tfdist.barrier(name=f"of rank {tfdist.rank()}")
