"""Callbacks and calls that write refuse the address of a store on every rank, and make no folder of its name."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BackupAndRestore, BestModelCheckpoint, DataParallel, Metrics, ModelCheckpoint


def test_each_callback_refuses_a_store(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (
        lambda path: ModelCheckpoint(path + ".keras"),
        lambda path: BestModelCheckpoint(path + ".keras"),
        lambda path: DataParallel(checkpoint=path + ".keras"),
        BackupAndRestore,
        Metrics,
        tfdist.start_timeline,
    ):
        with pytest.raises(tfdist.errors.ConfigError, match="s3:// is neither"):
            make("s3://bucket/run")
    with pytest.raises(tfdist.errors.ConfigError, match=r"RankZero\(lambda: keras.callbacks.ModelCheckpoint"):
        ModelCheckpoint("s3://bucket/run.keras")
    Metrics("gs://bucket/logs")  # TensorFlow writes there
    assert not list(tmp_path.iterdir())


def test_an_address_of_this_machine_is_a_path(world, shared_tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    checkpoint = ModelCheckpoint(f"file://{shared_tmp_path}/model.keras")
    x = np.array([[1.0, tfdist.rank()]])
    model.fit(x, x[:, :1], verbose=0, callbacks=[DataParallel(), checkpoint])
    assert (shared_tmp_path / "model.keras").is_file()
