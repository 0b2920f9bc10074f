"""Datasets of TFRecord files that contain `tf.train.Example`: a pure tf.data graph, which any worker can run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from tfdist.data_service.source import file_list, order, store_file
from tfdist.errors import ConfigError
from tfdist.system.local_path import address_of

_COMPRESSIONS = ("", "GZIP", "ZLIB")
# Files that are read at the same time, a record of each in turn.
_FILES = 4
# Of an object, to look at its first record.
_FIRST_BYTES = 1 << 20
_KINDS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}


def from_tfrecord(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Any],
    *,
    batch_size: int,
    shuffle: int = 0,
    seed: int | None = None,
    drop_remainder: bool = False,
    compression: str = "",
) -> tf.data.Dataset:
    """Returns a dataset of the examples in TFRecord files.

    The unit of sharding is a file, for `distribute(..., sharding="dynamic")` and `tfdist.shard(policy="file")`. Four
    files are read at a time, one record from each in turn, always in the same order.

    A file in an object store is copied to the disk of the process that reads it, before its first record, and kept for
    later passes while there is room (`TFDIST_STORE_CACHE`).

    Args:
        files: A path, a pattern such as "data/*.tfrecord", a folder, or a list of them; also as addresses in an object
            store, such as "s3://bucket/data/*.tfrecord", which workers then open as well.
        features: As for `tf.io.parse_example`: a `tf.io.FixedLenFeature`, `VarLenFeature` or other, by name.
        batch_size: Examples per batch.
        shuffle: 0 keeps the order. N > 0 puts the files into a random order, the same for all passes, and shuffles with
            a buffer of N examples, differently in each pass.
        seed: Makes the shuffling the same in every process.
        drop_remainder: Whether to drop a last batch with fewer examples.
        compression: Compression of the files: "", "GZIP" or "ZLIB".

    Returns:
        A `tf.data.Dataset` of dictionaries from feature to a batch of values.

    Raises:
        ConfigError: If there are no files, or their first example lacks the features.
        StoreError: If a store cannot be read.

    Example:

    ```python
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    dataset = tfdist.data_service.from_tfrecord("data/*.tfrecord", features, batch_size=64, shuffle=10_000, seed=1)
    ```
    """
    if compression not in _COMPRESSIONS:
        raise ConfigError(f"from_tfrecord: compression must be one of {_COMPRESSIONS}; received {compression!r}.")
    if batch_size < 1 or shuffle < 0:
        raise ConfigError(
            f"from_tfrecord: batch_size must be 1 or more and shuffle 0 or more; received {batch_size} and {shuffle}."
        )
    paths = file_list.find("from_tfrecord", files, ".tfrecord", stores=True)
    _check_features(paths, features, compression)
    if shuffle:
        paths = [paths[place] for place in order.draw(len(paths), seed)[0]]

    def read(path: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(path, compression)

    records = tf.data.Dataset.from_tensor_slices(paths).interleave(
        store_file.reading_files(read) if any(map(address_of, paths)) else read,
        cycle_length=_FILES,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if shuffle:
        records = records.shuffle(shuffle, seed=seed)
    parsed = dict(features)
    return records.batch(batch_size, drop_remainder=drop_remainder).map(
        lambda batch: tf.io.parse_example(batch, parsed), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


def _check_features(paths: Sequence[str], features: Mapping[str, Any], compression: str) -> None:
    """Checks the first example, because an error in the graph names neither the file nor its contents."""
    path, record = _first_record(paths, compression)
    example = tf.train.Example()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise ConfigError(f"from_tfrecord: the first record of {path} is not a tf.train.Example: {error}") from error
    found = {name: _KINDS.get(str(value.WhichOneof("kind"))) for name, value in example.features.feature.items()}
    if not features or not found:
        raise ConfigError(
            f"from_tfrecord: features must name at least one feature; received {list(features)}. The first record of "
            f"{path} has {sorted(found) or 'no features'}."
        )
    for name, feature in features.items():
        needed = getattr(feature, "default_value", "") is None and name not in found
        if needed or (name in found and found[name] not in (None, feature.dtype)):
            there = {name: dtype.name if dtype else "empty" for name, dtype in sorted(found.items())}
            raise ConfigError(
                f"from_tfrecord: feature {name!r} is requested as {feature.dtype.name}, but the first example of "
                f"{path} has {there}. Match the file, or give a default_value."
            )
    try:
        tf.io.parse_single_example(record, dict(features))
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        raise ConfigError(f"from_tfrecord: the first example of {path} does not match features: {error}") from error


def _first_record(paths: Sequence[str], compression: str) -> tuple[str, bytes]:
    for path in paths:
        try:
            record = _first_of(path, compression)
        except tf.errors.DataLossError as error:
            raise ConfigError(
                f"from_tfrecord: {path} is not a TFRecord file, or its compression is not {compression!r}: "
                f"{error.message}"
            ) from error
        if record is not None:
            return path, record
    raise ConfigError(f"from_tfrecord: found no records in {len(paths)} files, the first of which is {paths[0]}.")


def _first_of(path: str, compression: str) -> bytes | None:
    """The first record of a file, or of an object, of which no more is read than it takes; None if it has none."""
    if address_of(path) is None:
        return next((record.numpy() for record in tf.data.TFRecordDataset(path, compression).take(1)), None)
    count = _FIRST_BYTES
    while True:
        beginning = store_file.first_bytes(path, count)
        with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
            file = Path(folder) / "beginning"
            file.write_bytes(beginning)
            try:
                record = _first_of(str(file), compression)
            except tf.errors.DataLossError:
                record = None
                if len(beginning) < count:
                    raise
        if record is not None or len(beginning) < count:
            return record
        count *= 16
