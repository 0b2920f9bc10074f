"""Whether workers can share a dataset as is asked; TensorFlow would tell it later, at length, or not at all.

It looks at what the dataset is made of. Steps that go by position are `position`'s.
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
    """Refuses a dataset whose workers would fight, fail, or not keep what they should.

    Args:
        dataset: A `tf.data.Dataset`.
        sharding: How workers share it, as for `distribute`.

    Raises:
        ConfigError: If it has a cache in a folder; under "dynamic" also if it has one in memory, or asserts how many
            elements it has; under "file" if it asserts that, or reads no files.
    """
    for step in _steps(dataset):
        kind = type(step).__name__
        if kind == "CacheDataset":
            _check_cache(step, sharding)
        elif kind == "_AssertCardinalityDataset" and sharding in ("dynamic", "file"):
            raise ConfigError(
                "dataset asserts how many elements it has (`load` does so unless told otherwise, and "
                f"`assert_cardinality`), but under sharding={sharding!r} each worker has only a part of them. Say "
                'load(..., order="shards"), or put assert_cardinality behind `distribute`.'
            )
    if sharding == "file" and not _reads_files(dataset):
        raise ConfigError(
            "sharding='file' wants a dataset that begins with files that tf.data reads: tf.data.TFRecordDataset, "
            "TextLineDataset or FixedLengthRecordDataset, also by `interleave` over their names, or from_tfrecord. "
            'This one reads none in that way; take "data" or "dynamic".'
        )


def _check_cache(step: Any, sharding: str) -> None:
    folder = tf.get_static_value(step._filename)
    if folder:
        raise ConfigError(
            f"dataset has a cache in {folder.decode(errors='replace')}, where workers of one machine, and passes that "
            "go on side by side, would all write at once. Put cache(...) behind `distribute`."
        )
    if sharding == "dynamic":
        raise ConfigError(
            "dataset has a cache in memory; under sharding='dynamic' a worker gets other elements in each pass, for "
            'which those it has kept are of no use. Put cache(...) behind `distribute`, or take "data" or "off".'
        )


def _steps(dataset: Any) -> Iterator[Any]:
    """The dataset and all it is made of, without what the functions of `interleave` and `flat_map` make."""
    yield dataset
    for part in dataset._inputs():
        yield from _steps(part)


def _reads_files(dataset: Any) -> bool:
    """Whether there is an op that reads files, in the graph of the dataset or in its functions."""
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph(external_state_policy=policy).numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any(re.sub(r"V\d+$", "", node.op) in _READERS for node in nodes)
