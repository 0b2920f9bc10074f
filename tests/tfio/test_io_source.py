"""tensorflow-io's readers for real. Run by `make test-tfio`, in an environment of their own."""

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tfdist.data_service import from_io
from tfdist.errors import ConfigError

ROWS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same numbers as two files of several kinds."""
    folder = tmp_path_factory.mktemp("tfio")
    for number in range(2):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "half": (ids / 2).astype(np.float32)})
        pq.write_table(table, folder / f"{number}.parquet")
        pyarrow.orc.write_table(table, folder / f"{number}.orc")
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["ids"] = ids
        records = [{"id": int(i), "half": float(i) / 2} for i in ids]
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, records)))
    return folder


def test_parquet(folder):
    dataset = from_io("parquet", folder, columns={"id": tf.int64, "half": tf.float32})
    rows = [(int(row["id"]), float(row["half"])) for row in dataset]
    assert rows == [(i, i / 2) for i in range(2 * ROWS)]


def test_orc(folder):
    rows = [(int(number), float(half)) for number, half in from_io("orc", folder / "*.orc")]
    assert rows == [(i, i / 2) for i in range(2 * ROWS)]


def test_hdf5(folder):
    values = [int(value) for value in from_io("hdf5", [folder / "1.h5", folder / "0.h5"], dataset="/ids")]
    assert values == [*range(ROWS, 2 * ROWS), *range(ROWS)]


def test_json(folder):
    rows = [(int(number), float(half)) for number, half in from_io("json", folder, columns=["id", "half"])]
    assert rows == [(i, i / 2) for i in range(2 * ROWS)]


SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
}


def avro_number(value):
    value = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


def avro_bytes(value):
    return avro_number(len(value)) + value


def avro_file(rows):
    """An Avro container with one block, by its specification: nothing here writes one."""
    marker = b"0123456789abcdef"
    header = {b"avro.schema": json.dumps(SCHEMA).encode(), b"avro.codec": b"null"}
    described = b"".join(avro_bytes(key) + avro_bytes(value) for key, value in header.items())
    block = b"".join(avro_number(number) + avro_bytes(text) for number, text in rows)
    head = b"Obj\x01" + avro_number(len(header)) + described + b"\0" + marker
    return head + avro_number(len(rows)) + avro_bytes(block) + marker


def test_avro(tmp_path):
    rows = [(number, b"text %d" % number) for number in (5, -300, 70_000)]
    (tmp_path / "a.avro").write_bytes(avro_file(rows))
    (tmp_path / "b.avro").write_bytes(avro_file(rows[:1]))
    dataset = from_io("avro", tmp_path, schema=json.dumps(SCHEMA), columns=["id", "text"])
    assert [(int(number), text.numpy()) for number, text in dataset] == [*rows, rows[0]]


def test_what_a_file_is_not_is_told(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"0\.json is not a file of kind 'orc': it begins with b'\{"):
        from_io("orc", folder / "0.json")
    with pytest.raises(ConfigError, match="found no files"):
        from_io("avro", folder)
    (tmp_path / "a.avro").write_bytes(avro_file([(1, b"")]))
    with pytest.raises(ConfigError, match=r"a\.avro cannot be read as avro with \{\}: .*schema"):
        from_io("avro", tmp_path)
    with pytest.raises(ConfigError, match=r"0\.parquet cannot be read as parquet"):
        list(from_io("parquet", folder / "0.parquet", columns={"nothing": tf.int64}))
