"""Datasets of Parquet files that run in the trainer and on the workers of a data service. `parquet_file` reads the
files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data_service.source import file_list, order, parquet_file, row_reader
from tfdist.errors import ConfigError
from tfdist.native import adapter

# Windows that are read at the same time: one is read while another is cut into batches.
_READS = 2


def from_parquet(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    *,
    batch_size: int,
    shuffle: int = 0,
    seed: int | None = None,
    drop_remainder: bool = False,
    fill: Mapping[str, Any] | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of the rows of Parquet files.

    You need it to train from a table. The unit of sharding is a row group: with `distribute(..., sharding="dynamic")`
    each is read by exactly one worker, which needs pyarrow and the files at the same paths. Only the requested columns
    are read.

    Integers, floats and booleans keep their type; strings and binary values become `tf.string`. Dates and times become
    integers in the unit of the file. Lists of a fixed size become one more dimension. Other types, and nulls without a
    `fill`, are errors.

    Args:
        files: A path, a pattern such as "data/*.parquet", a folder, or a list of them; also as addresses in an object
            store, such as "s3://bucket/data/*.parquet", which workers then open as well.
        columns: Names of the columns to read; None reads all.
        batch_size: Rows per batch. Batches may span row groups and files.
        shuffle: 0 keeps the order of the files. N > 0 puts the row groups into a random order and shuffles the rows of
            N of them at a time, which takes the memory of about 3 N row groups in each reading process. The order of
            the row groups is drawn when the dataset is made, because all workers must follow the same order. Rows are
            shuffled differently in each pass, except on the workers of a service if there is a seed.
        seed: Makes the shuffling the same in every process; required with `tfdist.shard`, unless
            `keras.utils.set_random_seed` was called.
        drop_remainder: Whether to drop a last batch with fewer rows; each worker of a service has one.
        fill: Replacement for nulls, by column.

    Returns:
        A `tf.data.Dataset` of dictionaries from column to a tensor of shape `[batch_size]`, or `[batch_size, size]` for
        lists.

    Raises:
        ConfigError: If the files cannot be read as requested; names the file and the column.
        StoreError: If a store cannot be read.
        BuildError: If pyarrow is missing.

    Example:

    ```python
    dataset = tfdist.data_service.from_parquet("data/*.parquet", batch_size=256, shuffle=8, seed=1)
    dataset = dataset.map(lambda row: (tf.stack([row["width"], row["height"]], axis=1), row["label"]))
    model.fit(tfdist.data_service.distribute(dataset, "dispatcher:5050").prefetch(2))
    ```
    """
    for name, value, least in (("batch_size", batch_size, 1), ("shuffle", shuffle, 0)):
        if not isinstance(value, (int, np.integer)) or value < least:
            raise ConfigError(f"from_parquet: {name} must be an integer, {least} or more; received {value!r}.")
    plan = parquet_file.plan(file_list.find("from_parquet", files, ".parquet", stores=True), columns, dict(fill or {}))
    row_reader.open_reader()
    groups = len(plan.file_of)
    dataset = tf.data.Dataset.range(groups)
    places, seeds = order.draw(groups, seed) if shuffle else (np.arange(groups), None)
    if shuffle:
        dataset = dataset.shuffle(min(shuffle, groups), seed=seed)
    windows, seed_text = dataset.batch(max(1, shuffle)), "any" if shuffle else ""
    if seeds is not None:
        # Drawn anew in each pass, in which a window may have the row groups of the pass before.
        windows = windows.flat_map(_with_draw(seed))
        seed_text = " ".join(map(str, seeds))
    windows = windows.map(_reader(plan, places, seed_text), num_parallel_calls=_READS)
    return windows.rebatch(batch_size, drop_remainder=drop_remainder)


def _with_draw(seed: int | None) -> Any:
    """A function that adds a number to a window. Not by `zip`, since workers share the windows by dynamic sharding."""
    draw = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).take(1)

    @tf.autograph.experimental.do_not_convert
    def add(places: tf.Tensor) -> tf.data.Dataset:
        return draw.map(lambda number: (places, number))

    return add


def _reader(plan: parquet_file.Plan, permutation: np.ndarray[Any, Any], seed: str) -> Any:
    """A function from the positions of row groups in the order, with one more number for the seed, to their rows."""
    specification = parquet_file.specification(plan.columns)
    counts = np.stack([plan.group_of, plan.rows_of, plan.print_of])[:, permutation]
    file_of = plan.file_of[permutation]
    dtypes = [tf.dtypes.as_dtype(column.dtype) for column in plan.columns]
    shapes = [tf.TensorShape([None, *column.shape]) for column in plan.columns]
    read_rows = adapter.ops().tfdist_read_rows

    @tf.autograph.experimental.do_not_convert
    def read(places: tf.Tensor, *draws: tf.Tensor) -> dict[str, tf.Tensor]:
        paths = tf.gather(tf.constant(plan.files), tf.gather(tf.constant(file_of), places))
        texts = tf.strings.as_string(tf.concat([places[tf.newaxis], tf.gather(tf.constant(counts), places, axis=1)], 0))
        per_group = tf.transpose(tf.concat([texts, paths[tf.newaxis]], axis=0))
        numbers = tf.strings.join([seed, *map(tf.strings.as_string, draws)], " ")
        head = tf.stack([row_reader.ROWS, specification, numbers])
        request = tf.concat([head, tf.reshape(per_group, [-1])], axis=0)
        values = read_rows(request=request, dtypes=dtypes, shapes=shapes)
        return {column.name: value for column, value in zip(plan.columns, values, strict=True)}

    return read
