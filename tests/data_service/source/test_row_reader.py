"""The op and the reader of this process: columns arrive as given, and what the reader raises becomes the op's error."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data_service.source import parquet_file, row_reader
from tfdist.data_service.source.row_reader import Column, column_of
from tfdist.errors import ConfigError, StallError
from tfdist.native import adapter, library


def run(dtypes, request=("request",)):
    row_reader.open_reader()
    shapes = [tf.TensorShape(None)] * len(dtypes)
    return adapter.ops().tfdist_read_rows(request=[row_reader.ROWS, *request], dtypes=dtypes, shapes=shapes)


def strings(texts):
    data = b"".join(texts)
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    owner = np.frombuffer(data, np.uint8)
    return Column((len(texts),), owner.ctypes.data, len(data), ends.ctypes.data, (owner, ends))


def test_columns_arrive_as_they_are_given(monkeypatch):
    seen = []

    def read(parts):
        seen.append(parts)
        half = np.arange(6, dtype=np.float16).reshape(2, 3)[:, ::2]
        return [column_of(half), strings([b"", b"a\0b"])]

    monkeypatch.setattr(parquet_file, "read", read)
    half, texts = run([tf.float16, tf.string], ["one", "", "three"])
    assert half.numpy().tolist() == [[0, 2], [3, 5]]
    assert texts.numpy().tolist() == [b"", b"a\0b"]
    assert seen == [[b"one", b"", b"three"]]


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ConfigError("no column 'a'"), tf.errors.InvalidArgumentError),
        (FileNotFoundError("no file 'a'"), tf.errors.NotFoundError),
        (KeyError("a"), tf.errors.InternalError),
        (SystemExit("a"), tf.errors.InternalError),
    ],
)
def test_what_the_reader_raises_is_the_error_of_the_op(monkeypatch, raised, error):
    def read(parts):
        raise raised

    monkeypatch.setattr(parquet_file, "read", read)
    with pytest.raises(error, match="a"):
        run([tf.float32])


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (lambda: [column_of(np.zeros(3, np.float64))], "24 bytes, which do not match float of shape"),
        (lambda: [strings([b"a"])], "1 bytes, which do not match float of shape"),
        (list, "returned no column 0"),
        (lambda: [column_of(np.zeros(1, np.float32))] * 2, "there is no column 1"),
    ],
)
def test_what_does_not_fit_the_op_is_an_error(monkeypatch, columns, text):
    monkeypatch.setattr(parquet_file, "read", lambda parts: columns())
    with pytest.raises(tf.errors.InternalError, match=text):
        run([tf.float32])


def test_a_reader_that_does_not_end_is_told(monkeypatch):
    with row_reader.closed():
        pass
    monkeypatch.setattr(library.load(), "tfdist_close_row_reader", lambda seconds: 0)
    with pytest.raises(StallError, match="did not end within"), row_reader.closed():
        pytest.fail("the worker must not be stopped")
