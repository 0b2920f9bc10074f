"""The mark that `shard` puts on the data it returns, by which `fit` knows how its data was sharded.

A dataset keeps its mark through further tf.data steps, since each step knows its inputs; an array has one as long as it
is the same object. Data derived in any other way has none: by a generator, from a file, by arithmetic.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tfdist.input import pipeline

REMAINDERS = ("drop", "pad", "join")
# Beside a remainder: the shards of all ranks together have fewer samples than the data, as far as is known.
LEAVES_OUT = "leaves out"
_MARK = "_tfdist_remainder"
_arrays: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()


def put(data: Any, *remainders: str) -> Any:
    """Marks a shard.

    Args:
        data: A dataset that nothing else uses; or a structure of such arrays.
        remainders: Values from `REMAINDERS`, and `LEAVES_OUT`.

    Returns:
        The data.
    """
    if isinstance(data, tf.data.Dataset):
        setattr(data, _MARK, remainders)
    else:
        _arrays.update({(id(array), each): array for array in tf.nest.flatten(data) for each in remainders})
    return data


def of(data: Any) -> set[str]:
    """The remainders with which the shards in some data were made; empty if none of it came from `shard`.

    Args:
        data: A structure of the data that `fit` takes.
    """
    return _labels(data) - {LEAVES_OUT}


def is_part(data: Any) -> bool:
    """Whether some of the data came from `shard`, so that other ranks have other parts of it.

    Args:
        data: A structure of the data that `fit` or `evaluate` takes.
    """
    return bool(of(data))


def leaves_out(data: Any) -> bool:
    """Whether a shard in some data has dropped samples, or may have.

    Args:
        data: A structure of the data that `fit` takes.
    """
    return LEAVES_OUT in _labels(data)


def is_fixed(data: Any) -> bool:
    """Whether a shard in some data stays that of these ranks, also when others are left or have joined.

    Args:
        data: A structure of the data that `fit` takes.
    """
    return bool(_labels_of_arrays(data)) or any(
        hasattr(node, _MARK) and not hasattr(node, pipeline.ELASTIC_MARK)
        for dataset in datasets_in(data)
        if pipeline.service_of(dataset) is None
        for node in pipeline.nodes(dataset)
    )


def _labels(data: Any) -> set[str]:
    found = _labels_of_arrays(data)
    for dataset in datasets_in(data):
        found.update(*(getattr(node, _MARK, ()) for node in pipeline.nodes(dataset)))
    return found


def _labels_of_arrays(data: Any) -> set[str]:
    known = (*REMAINDERS, LEAVES_OUT)
    return {
        each for leaf in tf.nest.flatten(data) for each in known if _arrays.get((id(leaf), each)) is leaf is not None
    }


def global_batches(data: Any) -> set[int]:
    """The `global_batch` of the shards in some data that have one.

    Args:
        data: A structure of the data that `fit` takes.
    """
    return {part.global_batch for part in global_parts(data)}


def global_parts(data: Any) -> list[Any]:
    """The `GlobalPart` of each shard in some data that has one.

    Args:
        data: A structure of the data that `fit` takes.
    """
    nodes = (node for dataset in datasets_in(data) for node in pipeline.nodes(dataset))
    parts = (getattr(node, pipeline.ELASTIC_MARK, None) for node in nodes)
    return [part for part in parts if hasattr(part, "global_batch")]


def datasets_in(data: Any) -> list[tf.data.Dataset]:
    """The datasets in a structure of the data that `fit` takes, also in an adapter of Keras or of a strategy."""
    found = []
    for leaf in tf.nest.flatten(data):
        for name in ("_dataset", "_original_dataset"):
            leaf = getattr(leaf, name, leaf)
        if isinstance(leaf, tf.data.Dataset):
            found.append(leaf)
    return found
