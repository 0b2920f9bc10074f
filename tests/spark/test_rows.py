"""The rows of an Estimator: which are refused, which each rank reads, and what is left of them in the store."""

import keras
import numpy as np
import pytest
from lines import ROWS, line, points
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions

from tfdist.errors import ConfigError
from tfdist.spark import store
from tfdist.spark.keras import Store, training
from tfdist.spark.keras import estimator as estimators

pytestmark = pytest.mark.usefixtures("nothing_is_left", "all_packages")


@pytest.fixture(scope="module")
def spark(context):
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _with_x(column):
    """A change of the column x."""
    return lambda frame: frame.withColumn("x", column(frame))


def _unchanged(frame):
    return frame


def _excluding():
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[keras.Variable(0.0)])
    return optimizer


@pytest.fixture
def doubles():
    def use(name):
        keras.config.set_floatx(name)
        keras.config.set_dtype_policy(name)

    use("float64")
    yield
    use("float32")


@pytest.mark.usefixtures("doubles")
def test_doubles_stay_doubles(context, spark, tmp_path):
    """With `floatx`, which executors do not know: float32 has no number between 16777216 and 16777218."""
    many = 2.0**24 + 1
    frame = spark.createDataFrame([(many, Vectors.dense([many, 0]), 1.0)] * 9, ["one", "two", "label"])
    entries = [keras.Input((1,)), keras.Input((2,))]
    less = [keras.layers.Rescaling(1.0, offset=1 - many)(entry)[:, :1] for entry in entries]
    model = keras.Model(entries, keras.layers.Dense(1, kernel_initializer="ones")(less[0] * less[1]))
    given = {"feature_cols": ["one", "two"], "label_cols": ["label"], "optimizer": "sgd", "loss": "mse"}
    fitted = line(tmp_path, model=model, **given).fit(frame)
    assert fitted.getHistory()["loss"] == [0.0]
    assert {row.label__output for row in fitted.transform(frame).collect()} == {1.0}


REFUSED = {
    "null": (
        _with_x(lambda frame: functions.when(frame.x > 9, frame.x)),
        {},
        "'x' has 10 nulls, which tensors",
    ),
    "text": (
        lambda frame: frame.withColumn("y", frame.x.cast("string")),
        {},
        "label_cols: column 'y' has text, and the model takes numbers there",
    ),
    "no column": (
        lambda frame: frame.drop("y"),
        {},
        "label_cols: the DataFrame has no column 'y'; it has 'x', 'z', 'third'",
    ),
    "few rows": (
        lambda frame: frame.limit(1),
        {},
        "1 rows to train on, in 1 row groups of 1 files, and each of 2 ranks needs",
    ),
    "decimal": (_with_x(lambda frame: frame.x.cast("decimal")), {}, "is of type decimal.*cast it"),
    "ragged": (
        _with_x(lambda frame: functions.expr("array_repeat(x, int(1 + x % 2))")),
        {},
        r"'x' has arrays of \(1,\) and of \(2,\) values, and a tensor needs the same number",
    ),
    "empty": (
        _with_x(lambda frame: functions.array_repeat("x", 0)),
        {},
        r"'x' has arrays of \(0,\) values, and a tensor needs the same number, at least 1",
    ),
    "size": (
        _with_x(lambda frame: functions.array("x", "z")),
        {},
        "'x' has 2 values in a row, and the model takes 1",
    ),
    "inputs": (_unchanged, {"feature_cols": ["x", "z"]}, "the model has 1 inputs, and each is a column; received 2"),
    "checkpoint": (
        _unchanged,
        {
            "store": Store("nowhere", save_runs=False),
            "checkpoint_callback": keras.callbacks.ModelCheckpoint("unused.keras"),
        },
        "checkpoint_callback is given, and the store has save_runs=False",
    ),
    "run": (
        _unchanged,
        {"store": Store("nowhere", save_runs=False), "run_id": "mine"},
        "run_id is given, and the store has save_runs=False",
    ),
    "excluded": (_unchanged, {"optimizer": _excluding()}, r"exclude_from_weight_decay\(var_list=...\)"),
    "validation": (_unchanged, {"validation": "z"}, "'z' must have booleans, or 0 and 1; it is of type double"),
    "slots": (_unchanged, {"num_proc": 7}, "7 ranks need as many task slots"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_training(context, spark, tmp_path, case):
    change, parameters, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        line(tmp_path, **parameters).fit(change(points(spark)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left"


def _open(tmp_path):
    """Folders for the rows to train on and to validate with."""
    folders = (str(tmp_path / "train"), str(tmp_path / "validation"))
    for folder in folders:
        store.open_folder(folder)
    return folders


def test_rows_are_not_written_after_the_removal(context, spark, tmp_path):
    fit = estimators._Fit(line(tmp_path).values() | {"store": Store(tmp_path)}, 2)
    with pytest.raises(Exception, match="FileNotFoundError"):
        fit.write(points(spark), (str(tmp_path / "train"), str(tmp_path / "validation")))
    assert not list(tmp_path.iterdir())


def _rows_of_epochs(work, side, epochs, **options):
    """The values of x that each rank reads in its epochs."""
    sets = [training._dataset(work, side, rank, **options) for rank in range(2)]
    return [[[float(x) for batch in data for x in np.ravel(batch[0])] for _ in range(epochs)] for data in sets]


@pytest.mark.parametrize(
    "parameters", [{}, {"shuffle": False}, {"inmemory_cache_all": True}, {"partitions_per_process": 1}], ids=str
)
def test_each_row_is_read_once_in_an_epoch(context, spark, tmp_path, parameters):
    given = {"validation": "third", "partitions_per_process": 3, "random_seed": 1, "batch_size": 4, **parameters}
    estimator = line(tmp_path, **given)
    fit = estimators._Fit(estimator.values() | {"store": Store(tmp_path)}, 2)
    work = fit.work(None, fit.write(points(spark), _open(tmp_path)), str(tmp_path))
    ranks = _rows_of_epochs(work, work.train, 2, shuffled=True)
    for epoch in range(2):
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == [x for x in range(ROWS) if x % 3]
    assert _rows_of_epochs(work, work.train, 2, shuffled=True) == ranks, "the same in another run"
    shuffled = parameters.get("shuffle", True)
    assert all((rank[0] != rank[1]) == shuffled for rank in ranks)
    ((one,), (other,)) = _rows_of_epochs(work, work.validation, 1, shuffled=False)
    assert sorted(one + other) == list(range(0, ROWS, 3)) and one and other


def test_rows_for_validation_stay_those_of_their_run(context, spark, tmp_path):
    frame = points(spark)

    def chosen(**parameters):
        estimator = line(tmp_path, validation=0.5, **parameters)
        fit = estimators._Fit(estimator.values() | {"store": Store(tmp_path)}, 2)
        return sorted(row.x for row in frame.where(fit._validation(frame)).collect())

    assert chosen(run_id="mine") == chosen(run_id="mine") != chosen(run_id="other")
    assert chosen() != chosen()
    assert chosen(run_id="mine", random_seed=0) == chosen(random_seed=0) != chosen(run_id="mine")


@pytest.mark.parametrize("parameters", [{}, {"shuffle": False}, {"inmemory_cache_all": True}], ids=str)
@pytest.mark.parametrize("size", [4, 20], ids=["rows", "fewer rows"])
def test_steps_are_as_many_full_batches(context, spark, tmp_path, size, parameters):
    steps = {"train_steps_per_epoch": 5, "validation_steps_per_epoch": 3}
    estimator = line(tmp_path, validation="third", batch_size=size, **steps, **parameters)
    fit = estimators._Fit(estimator.values() | {"store": Store(tmp_path)}, 2)
    work = fit.work(None, fit.write(points(spark), _open(tmp_path)), str(tmp_path))
    sets = [training._dataset(work, work.train, rank, shuffled=True).take(20) for rank in range(2)]
    batches = [np.ravel(batch[0]).tolist() for data in sets for batch in data]
    assert [len(batch) for batch in batches] == [size] * 40, "it has no end"
    assert sorted(set(sum(batches, []))) == [x for x in range(ROWS) if x % 3], "it leaves none out"
    assert len(list(training._dataset(work, work.validation, 0, shuffled=False))) == 3
