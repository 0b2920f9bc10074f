"""Estimators on the executors of an application: what they learn, what they leave, and what they refuse before it."""

import json
import subprocess
import sys
from pathlib import Path

import cloudpickle
import keras
import numpy as np
import pytest
from lines import ROWS, line, points
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import SparseVector, Vectors
from pyspark.sql import functions
from sklearn.datasets import load_digits

from tfdist.errors import ConfigError
from tfdist.spark.keras import KerasEstimator, KerasModel, Store
from tfdist.spark.keras import estimator as estimators

pytestmark = pytest.mark.usefixtures("nothing_is_left", "all_packages")

# Of the digits: enough for any order in which an executor writes the rows.
EPOCHS = 24
FRESH = """
import sys
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = PipelineModel.load(sys.argv[1]).transform(spark.read.parquet(sys.argv[2]))
print([int(row["digit__output"].toArray().argmax()) for row in frame.orderBy("number").collect()])
"""

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def spark(context):
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


@pytest.fixture(scope="module")
def digits(spark):
    """With the number of a row; its images as columns of eight pixels, arrays."""
    images, labels = load_digits(return_X_y=True)
    rows = [
        (number, *_rows_of(image / 16), int(label))
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    lines = ", ".join(f"line{place} array<float>" for place in range(8))
    return spark.createDataFrame(rows, f"number int, {lines}, digit int").cache()


def _rows_of(image):
    return [row.tolist() for row in image.reshape(8, 8)]


def _assembler():
    return VectorAssembler(inputCols=[f"line{place}_vector" for place in range(8)], outputCol="image")


def _with_vectors(frame):
    from pyspark.ml.functions import array_to_vector

    return frame.select("*", *[array_to_vector(f"line{place}").alias(f"line{place}_vector") for place in range(8)])


def _network():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((8, 8, 1)), *(keras.layers.Conv2D(32, 3, activation="relu") for _ in range(2))]
    layers += [keras.layers.Flatten(), keras.layers.Dense(64, activation="relu"), keras.layers.Dropout(0.3)]
    layers += [keras.layers.Dense(10, activation="softmax")]
    return keras.Sequential(layers)


def _vectors_of(frame, column):
    return np.stack([row[column].toArray() for row in frame.select(column).collect()])


def test_digits_in_a_pipeline(context, digits, tmp_path):
    frame = _with_vectors(digits)
    train, test = frame.where("number % 5 != 0"), frame.where("number % 5 = 0")
    estimator = KerasEstimator(
        model=_network(),
        optimizer=keras.optimizers.Adam(2e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["image"],
        label_cols=["digit"],
        store=Store.create(tmp_path / "store"),
        num_proc=2,
        batch_size=16,
        epochs=EPOCHS,
        validation=0.1,
        random_seed=1,
        partitions_per_process=4,
        run_id="digits",
    )
    fitted = Pipeline(stages=[_assembler(), estimator]).fit(train)
    model = fitted.stages[1]
    assert {name: len(values) for name, values in model.getHistory().items()} == dict.fromkeys(
        ["loss", "accuracy", "val_loss", "val_accuracy"], EPOCHS
    )
    assert model.getHistory()["val_accuracy"][-1] > 0.95

    predicted = fitted.transform(test).orderBy("number")
    found = _vectors_of(predicted, "digit__output")
    images = np.array([[row[f"line{place}"] for place in range(8)] for row in predicted.collect()], "float32")
    np.testing.assert_allclose(found, model.keras().predict(images[..., None], verbose=0), rtol=1e-4, atol=1e-6)
    labels = np.array([row["digit"] for row in predicted.collect()])
    assert (found.argmax(1) == labels).mean() >= 0.97

    run = tmp_path / "store" / "runs" / "digits"
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint.keras", "logs"], "the backup is gone"
    assert len(next((run / "logs").iterdir()).read_text().splitlines()) == EPOCHS + 1
    assert not list((tmp_path / "store").rglob("*.parquet"))

    fitted.save(str(tmp_path / "fitted"))
    test.write.parquet(str(tmp_path / "rows"))
    words = [sys.executable, "-c", FRESH, str(tmp_path / "fitted"), str(tmp_path / "rows")]
    fresh = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert fresh.stdout.strip() == str([int(each) for each in found.argmax(1)]), fresh.stderr

    steps = int(model.keras().optimizer.iterations)
    again = estimator.copy({estimator.epochs: 1}).fit(_assembler().transform(train))
    assert int(again.keras().optimizer.iterations) == steps + steps // EPOCHS
    assert again.getHistory()["loss"][0] < model.getHistory()["loss"][2], "it goes on"


def _table(spark):
    """Rows of three kinds of columns, with a label and a weight of each."""
    draw = np.random.default_rng(3)
    scalars, arrays = draw.normal(size=ROWS), draw.normal(size=(ROWS, 4)).astype("float32")
    vectors, labels, weights = draw.normal(size=(ROWS, 3)), draw.normal(size=(ROWS, 2)), draw.uniform(1, 2, ROWS)
    rows = [
        (float(a), b.tolist(), Vectors.dense(c) if place % 2 else SparseVector(3, [0, 1, 2], c), d.tolist(), float(e))
        for place, (a, b, c, d, e) in enumerate(zip(scalars, arrays, vectors, labels, weights, strict=True))
    ]
    frame = spark.createDataFrame(rows, ["one", "several", "a.vector", "label", "weight"])
    return frame, (scalars, arrays, vectors.astype("float32")), labels, weights


def _of_three():
    keras.utils.set_random_seed(2)
    inputs = [keras.Input((1,)), keras.Input((2, 2)), keras.Input((3,))]
    parts = [inputs[0], keras.layers.Flatten()(inputs[1]), inputs[2]]
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(parts)))


def _cubed(labels, predictions):
    return keras.ops.mean(keras.ops.abs(labels - predictions) ** 3, axis=-1)


def test_three_kinds_of_columns_equal_one_process(context, spark, tmp_path):
    frame, features, labels, weights = _table(spark)
    estimator = KerasEstimator(
        model=_of_three(),
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=_cubed,
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
        feature_cols=["one", "several", "a.vector"],
        label_cols=["label"],
        sample_weight_col="weight",
        store=Store(tmp_path / "store", save_runs=False),
        num_proc=2,
        batch_size=ROWS,  # so the order of rows does not matter
        epochs=3,
        partitions_per_process=2,
    )
    model = estimator.fit(frame)
    alone = _of_three()
    alone.compile(
        keras.optimizers.SGD(0.05, momentum=0.9), _cubed, metrics=[keras.metrics.MeanAbsoluteError(name="mae")]
    )
    inputs = (features[0], features[1].reshape(-1, 2, 2), features[2])
    history = alone.fit(inputs, labels, sample_weight=weights, batch_size=ROWS, epochs=3, shuffle=False, verbose=0)
    for one, other in zip(model.keras().get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    for name, values in history.history.items():
        np.testing.assert_allclose(model.getHistory()[name], values, rtol=1e-4)
    found = _vectors_of(model.setOutputCols(["said"]).transform(frame), "said")
    np.testing.assert_allclose(found, alone.predict(inputs, verbose=0), rtol=1e-4, atol=1e-5)
    assert not (tmp_path / "store" / "runs").exists()


class _Limited(keras.callbacks.Callback):
    """Lets a rank send no more than the driver does in this test."""

    def on_train_begin(self, logs=None):
        from tfdist.launch.function import parcel

        parcel.LIMIT_BYTES = 500_000


class _Half(keras.callbacks.Callback):
    """Halves the weights after an epoch, whatever the optimizer has done."""

    def on_train_begin(self, logs=None):
        self.begin = self.model.get_weights()

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([each / 2 for each in self.begin])


class _Fails(keras.callbacks.Callback):
    """Once, in the third epoch."""

    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and not Path(self.mark).exists():
            Path(self.mark).touch()
            raise InterruptedError("in the third epoch")


def test_a_run_that_failed_goes_on(context, spark, tmp_path):
    frame = points(spark).withColumn("x", functions.col("x") / ROWS)
    estimator = line(
        tmp_path,
        epochs=4,
        run_id="mine",
        callbacks=[_Fails(str(tmp_path / "mark"))],
        validation="third",
        inmemory_cache_all=True,
        metrics=[["mae"], []],
        checkpoint_callback=keras.callbacks.ModelCheckpoint("unused.keras", monitor="loss", save_best_only=True),
    )
    with pytest.raises(InterruptedError, match="in the third epoch"):
        estimator.fit(frame)
    best = json.loads((tmp_path / "runs" / "mine" / "best.json").read_text())["loss"]
    assert best < np.inf, "what is better than the checkpoint is known"
    model = estimator.fit(frame)
    assert json.loads((tmp_path / "runs" / "mine" / "best.json").read_text())["loss"] < best
    assert len(model.getHistory()["loss"]) == 2, "two of four epochs were done"
    values = np.arange(ROWS) / ROWS
    chosen = values[np.arange(ROWS) % 3 == 0][:, None]
    first, second = model.keras().predict(chosen, verbose=0)
    expected = np.mean((first[:, 0] - 2 * ROWS * chosen[:, 0]) ** 2) + np.mean(np.abs(second[:, 0] - 1)) / 2
    np.testing.assert_allclose(model.getHistory()["val_loss"][-1], expected, rtol=1e-4)
    row = model.transform(frame.where("x = 0")).first()
    np.testing.assert_allclose([row["y__output"], row["z__output"]], [w[0] for w in model.keras().get_weights()[1::2]])
    for other in (
        line(tmp_path, optimizer="adam"),
        line(tmp_path, model=_of_three(), optimizer="sgd", feature_cols=["x", "y", "z"]),
    ):
        other._set(run_id="mine", loss="mse", label_cols=["y", "z"] if other.getModel().outputs[1:] else ["y"])
        with pytest.raises(ConfigError, match="run_id 'mine' has a checkpoint of a model with 4 weights"):
            other.fit(frame)
    with pytest.raises(ConfigError, match="has a column 'y__output' already"):
        model.transform(model.transform(frame))
    with pytest.raises(Exception, match=r"column 'x' has 2 values in a row, and the model takes 1"):
        model.transform(frame.withColumn("x", functions.array("x", "z"))).collect()
    with pytest.raises(Exception, match="a null in column 'x', which the model cannot take"):
        model.transform(frame.withColumn("x", functions.when(functions.col("x") > 0, functions.col("x")))).collect()


class _Halved(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate / 2

    def get_config(self):
        return {"rate": self.rate}


class _Far(keras.losses.Loss):
    def call(self, labels, predictions):
        return keras.ops.mean(keras.ops.abs(labels - predictions), axis=-1)


class _Times(keras.metrics.Mean):
    """Its configuration lacks the factor."""

    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def update_state(self, labels, predictions, sample_weight=None):
        return super().update_state(self.factor * labels, sample_weight)


def _apart(labels, predictions):
    return keras.ops.mean(keras.ops.abs(labels - predictions), axis=-1)


def test_one_step_is_that_of_keras(context, spark, tmp_path):
    """Losses and metrics of one's own see a label of doubles as Keras gives it: float32, in the shape of the output."""
    keras.utils.set_random_seed(3)
    alone = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, bias_initializer="ones")])
    model = keras.models.clone_model(alone)
    model.set_weights(alone.get_weights())
    for each in (alone, model):
        inner = keras.optimizers.SGD(_Halved(0.02), weight_decay=0.5)
        inner.exclude_from_weight_decay(var_names=["bias"])
        scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
        each.compile(scaled, _Far(), metrics=[_apart, _Times(3.0)])
    values = np.arange(ROWS, dtype="float32")[:, None]
    expected = alone.fit(values, 2 * values, batch_size=ROWS, verbose=0).history
    frame = points(spark).withColumn("y", functions.col("y").cast("double"))
    fitted = line(
        tmp_path, model=model, label_cols=["y"], batch_size=ROWS, metrics=[_apart, _Times(3.0)], random_seed=1
    ).fit(frame)
    for one, other in zip(fitted.keras().get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert fitted.getHistory().keys() == expected.keys()
    for name, numbers in fitted.getHistory().items():
        np.testing.assert_allclose(numbers, expected[name], rtol=1e-5)


def test_the_best_of_all_fits_of_a_run(context, spark, tmp_path):
    best = keras.callbacks.ModelCheckpoint("unused.keras", monitor="val_loss", save_best_only=True)
    frame = points(spark).withColumn("x", functions.col("x") / ROWS)
    options = {"run_id": "mine", "checkpoint_callback": best, "random_seed": 1, "validation": "third"}
    first = line(tmp_path, **options).fit(frame)
    ruin = keras.callbacks.LearningRateScheduler(lambda epoch: 100.0)
    second = line(tmp_path, epochs=2, callbacks=[ruin], **options).fit(frame)
    assert min(second.getHistory()["val_loss"]) > first.getHistory()["val_loss"][-1]
    for one, other in zip(first.keras().get_weights(), second.keras().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # A fit that keeps its last model replaces the best one, with which the next is then not compared.
    plain = line(tmp_path, callbacks=[ruin], **options | {"checkpoint_callback": None}).fit(frame)
    third = line(tmp_path, callbacks=[_Half()], **options).fit(frame)
    for one, other in zip(plain.keras().get_weights(), third.keras().get_weights(), strict=True):
        np.testing.assert_allclose(np.asarray(one) / 2, other)
    entry = keras.Input((1,))
    outputs = [keras.layers.Dense(1, activation="tanh")(entry), keras.layers.Dense(1)(entry)]
    other = line(tmp_path, model=keras.Model(entry, outputs), optimizer="sgd", loss="mse", run_id="mine")
    with pytest.raises(
        ConfigError, match=r"run_id 'mine' has a checkpoint .*; a layer was Dense .*'linear'.* and is Dense"
    ):
        other.fit(frame)


def test_no_model_is_better_than_the_threshold(context, spark, tmp_path):
    best = keras.callbacks.ModelCheckpoint("unused.keras", "loss", save_best_only=True, initial_value_threshold=-1.0)
    with pytest.warns(UserWarning, match=r"none was better by 'loss' than its threshold.*after the last epoch"):
        fitted = line(tmp_path, checkpoint_callback=best, callbacks=[_Half()]).fit(points(spark))
    assert fitted.getHistory()["loss"]
    weights = fitted.keras().get_weights()
    assert weights and not (tmp_path / "store/runs" / fitted.getRunId() / "checkpoint.keras").exists()


def _kept(model, **parameters):
    return KerasModel(**{"model": model, "feature_columns": ["x"], "label_columns": ["y"], **parameters})


def test_rows_that_are_text_or_no_number(context, spark):
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    words = _kept(keras.Sequential([keras.Input((1,), dtype="string"), lookup]))
    frame = spark.createDataFrame([("b",), ("?",), ("a",)], "x string")
    assert _vectors_of(words.transform(frame), "y__output").argmax(1).tolist() == [2, 0, 1]
    entry = keras.Input((2,))
    pairs = spark.createDataFrame([([1.0, float("nan")],), ([1.0, 2.0],)], "x array<double>")
    summed = _kept(keras.Model(entry, keras.ops.sum(entry, axis=1, keepdims=True))).transform(pairs)
    np.testing.assert_array_equal([row["y__output"] for row in summed.collect()], [np.nan, 3.0])
    same = _kept(keras.Model(entry, entry * 1.0)).transform(pairs)
    np.testing.assert_array_equal(_vectors_of(same, "y__output"), [[1.0, np.nan], [1.0, 2.0]])
    holes = spark.createDataFrame([([1.0, None],)], "x array<double>")
    with pytest.raises(Exception, match="a null in column 'x', which the model cannot take"):
        _kept(keras.Model(entry, entry * 1.0)).transform(holes).collect()


@pytest.mark.parametrize(
    ("names", "said"),
    [(["X"], "has a column 'X' already"), ("y", "must be a list of 1 different names"), (["p", "P"], "of 2 different")],
    ids=str,
)
def test_names_of_outputs(context, spark, names, said):
    entry = keras.Input((1,))
    count = len(names)
    model = _kept(keras.Model(entry, [entry * 1.0] * count), label_columns=["y", "z"][:count], output_cols=names)
    with pytest.raises(ConfigError, match=said):
        model.transform(points(spark))


def test_a_model_larger_than_a_message(context, spark, tmp_path, monkeypatch):
    """With its optimizer; the ranks know no other limit than the driver's and theirs, which `env` sets."""
    layers = [keras.Input((1,)), keras.layers.Dense(500), keras.layers.Dense(500), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    monkeypatch.setattr("tfdist.launch.function.parcel.LIMIT_BYTES", 500_000)
    one = {"model": model, "optimizer": "adam", "loss": "mse", "label_cols": ["y"]}
    fitted = line(tmp_path, callbacks=[_Limited()], **one).fit(points(spark))
    assert fitted.keras().count_params() == model.count_params() > 250_000
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "runs" not in path.parts] == []


def test_an_estimator_is_kept(context, tmp_path):
    estimator = line(
        tmp_path / "store",
        epochs=7,
        loss=[_cubed, keras.losses.Huber(2.0)],
        optimizer=keras.optimizers.Adam(0.25),
    )
    estimator.getModel().compile("sgd", [keras.losses.Huber(3.0), _cubed])
    estimator.save(str(tmp_path / "kept"))
    read = KerasEstimator.load(str(tmp_path / "kept"))
    assert (read.uid, read.getEpochs(), read.getLabelCols()) == (estimator.uid, 7, ["y", "z"])
    assert read.getStore() == str(tmp_path / "store")
    assert float(read.getOptimizer().learning_rate) == 0.25
    zeros = np.zeros(2, "float32")
    assert read.getLoss()[0](zeros, zeros + 2) == 8
    assert read.getLoss()[1](zeros, zeros + 4) == 6, "of Huber's loss with 2.0"
    assert read.getModel().loss[0](zeros, zeros + 4) == 7.5, "of Huber's loss with 3.0, in the model"
    for one, other in zip(read.getModel().get_weights(), estimator.getModel().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert isinstance(read.setEpochs(3), KerasEstimator) and read.getEpochs() == 3


@pytest.mark.parametrize("chunk", [700, 1 << 30], ids=["many rows", "one row"])
def test_a_model_is_kept_in_rows(context, spark, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("tfdist.spark.keras.persistence._CHUNK_BYTES", chunk)
    model = _kept(keras.Sequential([keras.Input((3,)), keras.layers.Dense(20)]))
    model.save(str(tmp_path / "new"))
    rows = spark.read.parquet(str(tmp_path / "new" / "state"))
    assert (rows.count() > 9) == (chunk == 700)
    # As it was before there were several: without a place.
    model.save(str(tmp_path / "old"))
    whole = b"".join(row.state for row in rows.orderBy("place").collect())
    single = spark.createDataFrame([(bytearray(whole),)], "state binary")
    single.write.mode("overwrite").parquet(str(tmp_path / "old" / "state"))
    for name in ("new", "old"):
        read = KerasModel.load(str(tmp_path / name)).keras()
        for one, other in zip(read.get_weights(), model.keras().get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


ELSEWHERE = """
import sys
import numpy as np
from pyspark.sql import SparkSession
from tfdist.spark.keras import KerasEstimator
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
read = KerasEstimator.load(sys.argv[1])
metric = read.getMetrics()[0]
one = np.ones((1, 1), "float32")
metric.update_state(one, 3 * one)
print(float(read.getOptimizer().learning_rate), float(metric.result()), float(read.getLoss()(one, 4 * one)))
"""


def test_an_estimator_with_functions_of_its_own(context, tmp_path):
    own = {
        "optimizer": keras.optimizers.Adam(_Halved(0.5)),
        "loss": _Far(),
        "metrics": [keras.metrics.MeanMetricWrapper(_apart)],
    }
    line(tmp_path / "store", **own).save(str(tmp_path / "kept"))
    words = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "kept")]
    found = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert found.stdout.split() == ["0.25", "2.0", "3.0"], found.stderr


def test_how_a_checkpoint_is_made():
    given = {"monitor": "mine", "mode": "max", "verbose": 1, "save_best_only": True, "save_freq": 7}
    callback = keras.callbacks.ModelCheckpoint("unused.keras", **given, initial_value_threshold=0.5)
    assert estimators._checkpoint_settings(callback, validates=False) == given | {"initial_value_threshold": 0.5}


def test_data_that_cannot_be_removed_is_told(monkeypatch):
    def fail(folder):
        raise PermissionError(f"not {folder}")

    monkeypatch.setattr("tfdist.spark.store.remove", fail)
    with pytest.warns(UserWarning, match="here is left in the store: not here"):
        estimators._clear(["here"])


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"backend": object()}, "backend is not supported: ranks are started by tfdist.spark.run; use num_proc"),
        ({"transformation_fn": print}, "transformation_fn is not supported: transform the DataFrame before fit"),
        ({"reader_pool_type": "process"}, "reader_pool_type is not supported"),
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or more; received 0"),
        ({"validation": 1.5}, "validation must be a share of the rows, from 0 up to 1"),
        ({"feature_cols": ["x", "x"]}, "feature_cols must be a list of one or more names of columns, each once"),
        ({"model": None}, "model is needed; received None"),
        ({"run_id": "a/b"}, "run_id is the name of a folder"),
        ({"loss": ["mse", "msee"]}, r"loss must be a loss of Keras; received \['mse', 'msee'\]"),
        ({"metrics": "mae"}, "metrics must be a list of metrics of Keras, as that of compile; received 'mae'"),
        ({"metrics": [["accuracy"], ["maee"]]}, "metrics must be a list of metrics of Keras"),
        (
            {"checkpoint_callback": keras.callbacks.ModelCheckpoint("unused.keras", save_best_only=True)},
            "checkpoint_callback saves the best 'val_loss' only, and there is no validation",
        ),
        ({"checkpoint_callback": 3}, "checkpoint_callback must be a keras.callbacks.ModelCheckpoint that saves whole"),
        ({"label_shapes": [1]}, "label_shapes needs 2 shapes, one for each label"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_parameters_that_cannot_be(context, spark, tmp_path, parameters, said):
    estimator = line(tmp_path)
    estimator._set(**parameters)
    with pytest.raises(ConfigError, match=f"KerasEstimator: {said}"):
        estimator.fit(points(spark))


def test_none_is_the_default():
    """As from a program that hands on what its own user has not said."""
    values = KerasEstimator(use_gpu=None, shuffle=None, callbacks=None, verbose=None, custom_objects=None).values()
    found = {name: values[name] for name in ("use_gpu", "shuffle", "callbacks", "verbose", "custom_objects")}
    assert found == {"use_gpu": True, "shuffle": True, "callbacks": [], "verbose": 1, "custom_objects": {}}
    assert KerasModel(batch_size=None).values()["batch_size"] == 32


def test_names_of_horovod():
    estimator = KerasEstimator(reader_pool_type="thread").setShufflingBufferSize(9).setInMemoryCacheAll(True)
    assert (estimator.getShufflingBufferSize(), estimator.getInMemoryCacheAll(), estimator.getNumProc()) == (
        9,
        True,
        None,
    )
    with pytest.raises(TypeError, match=r"no parameters \['epoch'\]"):
        KerasEstimator(epoch=3)
    with pytest.raises(TypeError, match=r"no parameters \['epochs'\]"):
        KerasModel(epochs=3)
