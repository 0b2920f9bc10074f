"""Checks that workers can share a dataset as requested; TensorFlow would report problems later, verbosely, or not at
all.

It checks what the dataset is made of. `position` handles steps that depend on position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tfdist.errors import ConfigError

# The ops by which TensorFlow finds the files of a dataset, without the number of their version.
_READERS = frozenset(
    {
        "ArrayRecordDataset",
        "FixedLengthRecordDataset",
        "RecordIODataset",
        "SSTableDataset",
        "TFRecordDataset",
        "TextLineDataset",
    }
)


def check_fit(dataset: Any, sharding: str) -> None:
    """Rejects a dataset whose workers would conflict, fail, or not keep what they should.

    Args:
        dataset: A `tf.data.Dataset`.
        sharding: How workers share it, as for `distribute`.

    Raises:
        ConfigError: If it has a cache in a folder; with "dynamic" also if it has one in memory, or asserts its
            cardinality; with "file" if it asserts its cardinality, or reads no files.
    """
    for step in _steps(dataset):
        kind = type(step).__name__
        if kind == "CacheDataset":
            _check_cache(step, sharding)
        elif kind == "_AssertCardinalityDataset" and sharding in ("dynamic", "file"):
            raise ConfigError(
                "dataset asserts its number of elements (by `assert_cardinality`, or by `load` as it does by "
                f"default), but with sharding={sharding!r} each worker has only a part of them. Use load(..., "
                'order="shards"), or put assert_cardinality after `distribute`.'
            )
    if sharding == "file" and not _reads_files(dataset):
        raise ConfigError(
            "sharding='file' needs a dataset that starts with files read by tf.data: tf.data.TFRecordDataset, "
            "TextLineDataset or FixedLengthRecordDataset, directly or by `interleave` over their names, or "
            'from_tfrecord. This one reads no files that way; use "data" or "dynamic".'
        )


def _check_cache(step: Any, sharding: str) -> None:
    folder = tf.get_static_value(step._filename)
    if folder:
        raise ConfigError(
            f"dataset has a cache in {folder.decode(errors='replace')}, where all workers of one machine and all "
            "concurrent passes would write at once. Put cache(...) after `distribute`."
        )
    if sharding == "dynamic":
        raise ConfigError(
            "dataset has a cache in memory, but with sharding='dynamic' a worker gets different elements in each "
            'pass, so cached ones are useless. Put cache(...) after `distribute`, or use "data" or "off".'
        )


def _steps(dataset: Any) -> Iterator[Any]:
    """The dataset and all its inputs, except those made by the functions of `interleave` and `flat_map`."""
    yield dataset
    for part in dataset._inputs():
        yield from _steps(part)


def _reads_files(dataset: Any) -> bool:
    """Whether there is an op that reads files, in the graph of the dataset or in its functions."""
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph(external_state_policy=policy).numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any(re.sub(r"V\d+$", "", node.op) in _READERS for node in nodes)
