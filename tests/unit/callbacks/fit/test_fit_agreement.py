"""What is compared as `fit` begins: which callbacks count, and what is said of a difference."""

import keras
import pytest

import tfdist
from tfdist.callbacks.fit import fit_agreement

SAME = dict.fromkeys(fit_agreement._ADVICE) | {"epochs": 3, "initial_epoch": 0}
ENDING = "the list of callbacks that end training or set the learning rate"


class OwnRule(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        def stop():
            self.model.stop_training = True

        if epoch > 3:
            stop()


class Reader(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if self.model.stop_training:
            print(self.model.optimizer.learning_rate)


class Sums(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import tfdist

        tfdist.allreduce(1.0)


def test_nothing_is_said_of_equal_ranks():
    assert fit_agreement.difference({rank: dict(SAME) for rank in range(3)}) == ""


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("initial_epoch", (2, 0, 0), "initial_epoch is 2 on rank 0; 0 on ranks 1-2. Start all ranks at the same epoch"),
        ("epochs", (3, 4, 3), "epochs is 3 on ranks 0, 2; 4 on rank 1. Pass the same epochs"),
        ("validation_data", ("given", "not given", "not given"), "validation_data is given on rank 0; not given on"),
        (
            ENDING,
            (("EarlyStopping",), (), ()),
            "EarlyStopping on rank 0; empty on ranks 1-2. Pass them to fit on every",
        ),
    ],
)
def test_difference(name, values, expected):
    text = fit_agreement.difference({rank: SAME | {name: value} for rank, value in enumerate(values)})
    assert text.startswith("fit was called differently on the ranks: ")
    assert expected in text


def test_all_differences_are_named():
    text = fit_agreement.difference({0: SAME, 5: SAME | {"epochs": 9, "steps_per_execution": 2, "initial_epoch": 1}})
    assert "initial_epoch is 0 on rank 0; 1 on rank 5." in text
    assert "Also, epochs is 3 on rank 0; 9 on rank 5." in text
    assert "steps_per_execution" not in text, "it is not known on rank 0"


@pytest.mark.parametrize(
    ("callback", "decides"),
    [
        (keras.callbacks.EarlyStopping(), True),
        (keras.callbacks.TerminateOnNaN(), True),
        (keras.callbacks.ReduceLROnPlateau(), True),
        (keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), True),
        (OwnRule(), True),
        (keras.callbacks.LambdaCallback(on_epoch_end=OwnRule().on_epoch_end), True),
        (Reader(), False),
        (keras.callbacks.CSVLogger("x"), False),
        (keras.callbacks.TensorBoard("x"), False),
        (keras.callbacks.ModelCheckpoint("x.keras"), False),
    ],
)
def test_who_decides_for_all_ranks(callback, decides):
    assert bool(fit_agreement._stores_in(callback) & fit_agreement._DECISIONS) is decides


def test_who_runs_collectives():
    sends = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: tfdist.broadcast_object_fn()(epoch))
    compares = keras.callbacks.LambdaCallback(on_train_end=lambda logs: tfdist.check_equal(sends.model))
    for callback in (Sums(), sends, compares):
        assert fit_agreement._names_in(callback) & fit_agreement._COLLECTIVES
    assert not fit_agreement._names_in(Reader()) & fit_agreement._COLLECTIVES


def test_files_that_several_ranks_write():
    shared, own = ("ModelCheckpoint", "/a/best.keras"), [("CSVLogger", f"/a/{rank}.csv") for rank in range(3)]
    log = ("TensorBoard", "/a/logs")
    lines = fit_agreement.written_together({0: (shared, own[0], log), 1: (shared, own[1]), 2: (shared, own[2], log)})
    assert lines == [
        "keras.callbacks.ModelCheckpoint writes /a/best.keras on ranks 0-2, at the same time. Let one rank write: "
        "tfdist.callbacks.ModelCheckpoint(...)",
        "keras.callbacks.TensorBoard writes /a/logs on ranks 0, 2, at the same time. Let one rank write: "
        "tfdist.callbacks.RankZero(TensorBoard(...))",
    ]


def test_which_callbacks_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = [tfdist.callbacks.ModelCheckpoint("x.keras"), tfdist.callbacks.BackupAndRestore("backup")]
    keras_own = [keras.callbacks.ModelCheckpoint("x.keras"), keras.callbacks.BackupAndRestore("backup")]
    keras_own += [keras.callbacks.CSVLogger("log.csv"), keras.callbacks.TensorBoard("gs://bucket/logs"), Sums()]
    assert fit_agreement._files(ours) == ()
    paths = [str(tmp_path / name) for name in ("x.keras", "backup", "log.csv")]
    assert fit_agreement._files(keras_own) == tuple(
        zip(fit_agreement._WRITERS, [*paths, "gs://bucket/logs"], strict=True)
    )
