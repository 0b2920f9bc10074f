"""Callbacks and calls that cannot write to an address say so on every rank, and make no folder of its name."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BackupAndRestore, BestModelCheckpoint, DataParallel, Metrics, ModelCheckpoint


def test_each_callback_refuses_a_scheme_that_nothing_knows(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (
        lambda path: ModelCheckpoint(path + ".keras"),
        lambda path: BestModelCheckpoint(path + ".keras"),
        lambda path: DataParallel(checkpoint=path + ".keras"),
        BackupAndRestore,
        tfdist.start_timeline,
    ):
        with pytest.raises(tfdist.errors.ConfigError, match="nothing that is installed knows nonsense://"):
            make("nonsense://bucket/run")
    assert not list(tmp_path.iterdir())


def test_what_is_written_on_this_machine_alone(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tfdist.errors.ConfigError, match="s3:// is neither"):
        Metrics("s3://bucket/run")
    Metrics("gs://bucket/logs")  # TensorFlow writes there
    assert not list(tmp_path.iterdir())


def test_an_address_of_this_machine_is_a_path(world, shared_tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    checkpoint = ModelCheckpoint(f"file://{shared_tmp_path}/model.keras")
    x = np.array([[1.0, tfdist.rank()]])
    model.fit(x, x[:, :1], verbose=0, callbacks=[DataParallel(), checkpoint])
    assert (shared_tmp_path / "model.keras").is_file()
