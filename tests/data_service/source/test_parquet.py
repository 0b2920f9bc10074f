"""Parquet files as datasets: every row counted, in the trainer and on workers; what tensors cannot hold is refused."""

import collections
import datetime
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import from_parquet
from tfdist.data_service.source import parquet_file, row_reader
from tfdist.errors import ConfigError
from tfdist.input import shard

GROUP_ROWS = 20
ROWS = 100


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files of five row groups each; "id" counts through both."""
    folder = tmp_path_factory.mktemp("parquet")
    for number in range(2):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "half": (ids / 2).astype(np.float32), "name": [f"row {i}" for i in ids]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP_ROWS)
    return folder


def ids(dataset):
    return [int(number) for batch in dataset for number in batch["id"]]


def written(tmp_path, columns, name="a.parquet", **options):
    table = pa.table(columns)
    pq.write_table(table, tmp_path / name, **options)
    return tmp_path / name


def first(path, **options):
    return next(iter(from_parquet(path, batch_size=100, **options)))


def test_rows_come_in_the_order_of_the_files(files):
    batches = list(from_parquet(files / "*.parquet", batch_size=30))
    assert [len(batch["id"]) for batch in batches] == [30] * 6 + [20]
    assert ids(batches) == list(range(2 * ROWS))
    assert [float(half) for half in batches[1]["half"][:2]] == [15.0, 15.5]
    assert batches[6]["name"].numpy().tolist() == [f"row {i}".encode() for i in range(180, 200)]


def test_only_the_named_columns_are_read(files):
    dataset = from_parquet([files / "1.parquet"], ["name", "id"], batch_size=8, drop_remainder=True)
    assert list(dataset.element_spec) == ["name", "id"]
    assert dataset.element_spec["id"] == tf.TensorSpec([8], tf.int64)
    assert ids(dataset) == list(range(ROWS, ROWS + 96))


def test_seeded_shuffle_is_the_same_in_every_process(files):
    passes = [ids(dataset) for dataset in [from_parquet(files, batch_size=7, shuffle=3, seed=5)] for _ in range(2)]
    again = from_parquet(files, batch_size=7, shuffle=3, seed=5)
    assert [ids(again), ids(again)] == passes
    assert passes[0] != passes[1]
    assert ids(from_parquet(files, batch_size=7, shuffle=3, seed=6)) != passes[0]
    for order in passes:
        assert sorted(order) == list(range(2 * ROWS))
        # A window mixes rows of several row groups.
        assert len({number // GROUP_ROWS for number in order[: 3 * GROUP_ROWS]}) == 3
        assert len({number // GROUP_ROWS for number in order[:GROUP_ROWS]}) == 3


@pytest.mark.parametrize("shuffle", [1, 10])
def test_a_window_of_the_same_rows_is_mixed_anew(files, shuffle):
    """Also where it is all there is, or the row groups come one at a time."""
    path = files / "0.parquet"
    passes = [ids(dataset) for dataset in [from_parquet(path, batch_size=7, shuffle=shuffle, seed=5)] for _ in range(3)]
    again = from_parquet(path, batch_size=7, shuffle=shuffle, seed=5)
    assert [ids(again) for _ in range(3)] == passes
    places = [[order.index(row) for row in range(GROUP_ROWS)] for order in passes]
    assert len({tuple(np.argsort(each)) for each in places}) == 3, "the rows of a row group, in their order"


def test_shuffling_without_a_seed_loses_nothing(files):
    dataset = from_parquet(files, batch_size=7, shuffle=4)
    orders = [ids(dataset) for _ in range(2)]
    assert orders[0] != orders[1]
    assert [sorted(order) for order in orders] == [list(range(2 * ROWS))] * 2


def test_types_become_those_of_tensors(tmp_path):
    day = datetime.date(1970, 1, 3)
    columns = {
        "flag": pa.array([True, False, True]),
        "small": pa.array([1, 2, 255], pa.uint8()),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "box": pa.array([[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]], pa.list_(pa.list_(pa.float64(), 1), 2)),
        "category": pa.array(["b", "a", "b"]).dictionary_encode(),
        "bytes": pa.array([b"\x00a\x00", b"", b"\xff"]),
        "day": pa.array([day, day, day]),
        "moment": pa.array([1, 2, 3], pa.timestamp("ms", tz="UTC")),
    }
    row = first(written(tmp_path, columns))
    assert {name: (value.dtype.name, value.shape[1:].as_list()) for name, value in row.items()} == {
        "flag": ("bool", []),
        "small": ("uint8", []),
        "half": ("float16", []),
        "pair": ("int32", [2]),
        "box": ("float64", [2, 1]),
        "category": ("string", []),
        "bytes": ("string", []),
        "day": ("int32", []),
        "moment": ("int64", []),
    }
    assert row["flag"].numpy().tolist() == [True, False, True]
    assert row["pair"].numpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert row["box"].numpy().tolist() == [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]]
    assert row["category"].numpy().tolist() == [b"b", b"a", b"b"]
    assert row["bytes"].numpy().tolist() == [b"\x00a\x00", b"", b"\xff"]
    assert row["day"].numpy().tolist() == [2, 2, 2]
    assert row["moment"].numpy().tolist() == [1, 2, 3]


def test_strings_and_lists_keep_their_rows_when_shuffled(tmp_path):
    count = 50
    columns = {
        "id": pa.array(range(count)),
        "name": pa.array([f"{i}" * (i % 5) for i in range(count)]),
        "pair": pa.array([[i, -i] for i in range(count)], pa.list_(pa.int64(), 2)),
    }
    path = written(tmp_path, columns, row_group_size=7)
    for row in from_parquet(path, batch_size=9, shuffle=3, seed=1).unbatch():
        number = int(row["id"])
        assert row["name"].numpy().decode() == f"{number}" * (number % 5)
        assert row["pair"].numpy().tolist() == [number, -number]


def test_nulls_are_filled(tmp_path):
    columns = {"n": pa.array([1, None, 3]), "x": pa.array([None, 0.5, None]), "s": pa.array(["a", None, "c"])}
    row = first(written(tmp_path, columns), fill={"n": -1, "x": float("nan"), "s": "?"})
    assert row["n"].numpy().tolist() == [1, -1, 3]
    np.testing.assert_array_equal(row["x"].numpy(), [np.nan, 0.5, np.nan])
    assert row["s"].numpy().tolist() == [b"a", b"?", b"c"]


def test_empty_row_groups_and_empty_strings(tmp_path):
    written(tmp_path, {"s": pa.array([], pa.string())}, "a.parquet")
    path = written(tmp_path, {"s": pa.array(["", ""])}, "b.parquet")
    assert first(path.parent)["s"].numpy().tolist() == [b"", b""]


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"a": [1]}, {"columns": ["b"]}, r"no column \['b'\]; it has \['a'\]"),
        ({"a": [1]}, {"columns": []}, "one or more unique names"),
        ({"a": [1]}, {"columns": ["a", "a"]}, "one or more unique names"),
        ({"a": [1, None]}, {}, r"column 'a' has 1 nulls in .*row group 0.*fill=\{\"a\": 0\}"),
        ({"a": [1, None]}, {"fill": {"a": 0.5}}, "must be a value of int64; received 0.5"),
        ({"a": ["x", None]}, {"fill": {"a": 1}}, "must be a value of string; received 1"),
        ({"a": [1]}, {"fill": {"b": 1}}, r"fill for \['b'\]"),
        ({"a": [[1], [2, 3]]}, {}, "lists of variable length"),
        ({"a": [{"b": 1}]}, {}, r"type struct<b: int64>"),
        ({"a": pa.array([], pa.int64())}, {}, "there are no rows"),
        ({"a": pa.array([[1, 2]], pa.list_(pa.int64(), 2))}, {"fill": {"a": 1}}, "columns of single values"),
    ],
)
def test_what_cannot_be_delivered_is_refused_at_once(tmp_path, columns, options, text):
    path = written(tmp_path, columns)
    with pytest.raises(ConfigError, match=text):
        from_parquet(path, batch_size=1, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"batch_size": 0}, "batch_size.*1 or more; received 0"), ({"batch_size": 1, "shuffle": -1}, "shuffle.*-1")],
)
def test_wrong_number_is_refused(files, options, text):
    with pytest.raises(ConfigError, match=text):
        from_parquet(files, **options)


def test_files_must_have_the_same_types(tmp_path):
    written(tmp_path, {"a": pa.array([1])}, "a.parquet")
    path = written(tmp_path, {"a": pa.array([1.5])}, "b.parquet")
    with pytest.raises(ConfigError, match=r"int64 of shape \(\) in .*a.parquet, but float64 of shape \(\) in .*b.parq"):
        from_parquet(path.parent, batch_size=1)


def test_times_of_different_units_are_refused(tmp_path):
    """As numbers they would differ by a factor."""
    for name, unit in (("a", "us"), ("b", "ms")):
        written(tmp_path, {"t": pa.array([1, 2], pa.timestamp(unit))}, f"{name}.parquet")
    with pytest.raises(
        ConfigError, match=r"column 't' is timestamp\[us\] .*a.parquet, but timestamp\[ms\] .*b.parquet"
    ):
        from_parquet(tmp_path, batch_size=1)


def test_types_of_one_tensor_are_read_together(tmp_path):
    """Rows of several files are in one window, whichever way their texts, times and nulls are stored, in any order."""
    texts = [pa.array(["a", "b"]), pa.array(["c"], pa.large_string()), pa.array(["d"]).dictionary_encode()]
    times = [pa.array([value], pa.timestamp("ms", zone)) for value, zone in ((3, None), (4, "UTC"))]
    points = [pa.array([[1.0, 2.0]], pa.list_(pa.field(name, pa.float64()), 2)) for name in ("item", "element")]
    first = {"s": texts[0], "t": pa.array([1, 2], pa.timestamp("ms")), "p": pa.concat_arrays([points[0]] * 2)}
    for name, columns in (("a", first), ("b", {"t": times[0], "s": texts[1], "p": points[1]})):
        written(tmp_path, columns, f"{name}.parquet")
    schema = pa.schema(
        [pa.field("p", points[0].type), pa.field("s", texts[2].type), pa.field("t", times[1].type, False)]
    )
    pq.write_table(pa.table([points[0], texts[2], times[1]], schema=schema), tmp_path / "c.parquet")
    rows = next(iter(from_parquet(tmp_path, batch_size=4, shuffle=3, seed=1)))
    order = rows["t"].numpy().argsort()
    assert rows["t"].numpy()[order].tolist() == [1, 2, 3, 4] and rows["t"].dtype == tf.int64
    assert rows["s"].numpy()[order].tolist() == [b"a", b"b", b"c", b"d"]
    assert rows["p"].numpy().tolist() == [[1.0, 2.0]] * 4


def test_a_null_of_a_date_is_filled(tmp_path):
    path = written(tmp_path, {"day": pa.array([3, None], pa.date32())})
    assert first(path, fill={"day": -1})["day"].numpy().tolist() == [3, -1]


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("a,b")
    with pytest.raises(ConfigError, match=r"a\.parquet is not a readable Parquet file"):
        from_parquet(path, batch_size=1)


def test_nulls_that_the_footer_does_not_tell_are_found_when_read(tmp_path):
    path = written(tmp_path, {"a": pa.array([1, None])}, write_statistics=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 'a' has 1 nulls"):
        first(path)


def test_a_file_that_changed_or_went_is_named(tmp_path):
    path = written(tmp_path, {"a": pa.array([1, 2])})
    dataset = from_parquet(path, batch_size=1)
    written(tmp_path, {"a": pa.array([1, 2, 3])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="had 2 rows when the dataset was made and now has 3"):
        list(dataset)
    for other in (pa.array([1, 3]), pa.array([1.0, 2.0])):  # of the same number of rows
        written(tmp_path, {"a": other})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"a\.parquet has changed: row group 0 has other"):
            list(dataset)
    path.unlink()
    with pytest.raises(tf.errors.NotFoundError, match=r"a\.parquet is not a file on"):
        list(dataset)


@pytest.mark.parametrize("shuffle", [0, 2])
def test_workers_read_each_row_group_once(files, shuffle):
    dataset = from_parquet(files, batch_size=8, shuffle=shuffle, seed=3)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        config = data_service.WorkerConfig(dispatcher.address)
        with data_service.Worker(config), data_service.Worker(config):
            for _ in range(2):
                counted = collections.Counter(ids(data_service.distribute(dataset, dispatcher.address)))
                assert counted == collections.Counter(range(2 * ROWS))


WORKER = """
import sys
from tfdist import data_service
with data_service.Worker(data_service.WorkerConfig(sys.argv[1])) as worker:
    print(worker.address, flush=True)
    sys.stdin.read()
"""


def test_a_worker_process_needs_nothing_of_the_trainer(files):
    dataset = from_parquet(files, ["id", "name"], batch_size=8, shuffle=2, seed=3)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        command = [sys.executable, "-c", WORKER, dispatcher.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout.readline().strip()
            assert sorted(ids(data_service.distribute(dataset, dispatcher.address))) == list(range(2 * ROWS))
            worker.communicate(timeout=60)
    assert worker.returncode == 0


def test_a_worker_ends_while_it_reads(files, monkeypatch):
    """Stopping holds Python's lock; a read that waits for that lock must not keep it from ending."""
    reading = threading.Event()
    ended = threading.Event()
    read = parquet_file.read

    def slow(parts):
        reading.set()
        ended.wait(0.2)
        return read(parts)

    monkeypatch.setattr(parquet_file, "read", slow)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        worker = data_service.Worker(data_service.WorkerConfig(dispatcher.address))
        distributed = data_service.distribute(from_parquet(files, batch_size=8).repeat(), dispatcher.address)
        iterator = iter(distributed)
        next(iterator)
        reading.clear()
        assert reading.wait(60)
        worker.stop()
        ended.set()
        del iterator
    assert len(ids(from_parquet(files, batch_size=8))) == 2 * ROWS


def test_an_iterator_goes_while_it_reads(files, monkeypatch):
    reading, may_end = threading.Event(), threading.Event()
    read = parquet_file.read

    def slow(parts):
        if parts[2] != b"0":
            reading.set()
            assert may_end.wait(60)
        return read(parts)

    monkeypatch.setattr(parquet_file, "read", slow)
    iterator = iter(from_parquet(files, batch_size=8))
    assert ids([next(iterator)]) == list(range(8))
    assert reading.wait(60)
    del iterator  # returns although no read has ended
    may_end.set()
    with (
        row_reader.closed(),
        pytest.raises(tf.errors.FailedPreconditionError, match="this process has no running row reader"),
    ):
        list(from_parquet(files, batch_size=8))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_get_different_batches_of_one_size(files, size):
    parts = []
    for rank in range(size):
        dataset = from_parquet(files, batch_size=15, shuffle=2, seed=4)
        part = list(shard.shard_elements(dataset, rank, size))
        assert {len(batch["id"]) for batch in part} == {15}
        parts.append(ids(part))
    assert len({len(part) for part in parts}) == 1
    together = collections.Counter(number for part in parts for number in part)
    assert max(together.values()) == 1
    assert len(together) == 200 // (15 * size) * 15 * size
