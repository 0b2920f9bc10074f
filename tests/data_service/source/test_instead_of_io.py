"""What docs/data-service.md names instead of tensorflow-io's readers has the rows of the files."""

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tfdist.data_service import from_parquet

ROWS = 10
TABLE = pa.table({"id": np.arange(ROWS), "half": np.arange(ROWS) / 2})


def write_json(table, path):
    path.write_text("\n".join(map(json.dumps, table.to_pylist())))


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda table, path: pa.orc.write_table(table, str(path)), pa.orc.read_table),
        (lambda table, path: pa.feather.write_feather(table, str(path)), pa.feather.read_table),
        (lambda table, path: pa.csv.write_csv(table, str(path)), pa.csv.read_csv),
        (write_json, pa.json.read_json),
    ],
    ids=["orc", "feather", "csv", "json"],
)
def test_once_to_parquet(tmp_path, write, read):
    write(TABLE, tmp_path / "a")
    pq.write_table(read(str(tmp_path / "a")), tmp_path / "a.parquet")
    (batch,) = from_parquet(tmp_path / "a.parquet", batch_size=ROWS)
    assert {name: values.numpy().tolist() for name, values in batch.items()} == TABLE.to_pydict()


def test_hdf5(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(ROWS)
    dataset = tf.data.Dataset.from_tensor_slices(h5py.File(tmp_path / "a.h5")["x"][:])
    assert [int(value) for value in dataset] == list(range(ROWS))
