"""What `shard` notes on the data that it returns, by which a `fit` knows how its own was dealt out.

A dataset keeps its mark through whatever tf.data puts on top of it, since each step knows its inputs; an array has one
as long as it is the same object. What is made from them again has none: by a generator, from a file, by arithmetic.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tfdist.input import pipeline

REMAINDERS = ("drop", "pad", "join")
_MARK = "_tfdist_remainder"
_arrays: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()


def put(data: Any, *remainders: str) -> Any:
    """Marks a part.

    Args:
        data: A dataset that nobody else has; or arrays, likewise, in a structure.
        remainders: Of `REMAINDERS`.

    Returns:
        The data.
    """
    if isinstance(data, tf.data.Dataset):
        setattr(data, _MARK, remainders)
    else:
        _arrays.update({(id(array), each): array for array in tf.nest.flatten(data) for each in remainders})
    return data


def of(data: Any) -> set[str]:
    """The remainders by which the parts in some data were dealt out; none where `shard` returned nothing of it.

    Args:
        data: What `fit` takes, in a structure.
    """
    found: set[str] = set()
    for leaf in tf.nest.flatten(data):
        found.update(each for each in REMAINDERS if _arrays.get((id(leaf), each)) is leaf is not None)
        for name in ("_dataset", "_original_dataset"):  # in an adapter of Keras, in what a strategy distributes
            leaf = getattr(leaf, name, leaf)
        if isinstance(leaf, tf.data.Dataset):
            found.update(*(getattr(node, _MARK, ()) for node in pipeline.nodes(leaf)))
    return found
