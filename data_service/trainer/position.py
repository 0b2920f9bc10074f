"""Finds the steps of a pipeline whose meaning differs on each worker, because they depend on position or count.

Dynamic sharding splits the source. A later step sees only what its worker got: with three workers `take(10)` yields 30
elements, `skip(10)` loses 30, `zip` of two sources pairs the wrong elements (1,141 of 3,000 pairs on three workers),
and `unique` leaves 30 of 10, all without an error.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError

# Steps that put elements together, and make a short last one of what is left.
_GATHERING = re.compile(r"_(\w*Batch\w*|Window|GroupByWindow)Dataset")
# By the class of tf.data's that makes it.
_STEPS = {
    "_TakeDataset": "take",
    "_SkipDataset": "skip",
    "_ShardDataset": "shard",
    "_ZipDataset": "zip` or `enumerate",
    "_DirectedInterleaveDataset": "choose_from_datasets",
    "_TakeWhileDataset": "take_while",
    "_ScanDataset": "scan` or `counter",
    "_UniqueDataset": "unique",
    "_WindowDataset": "window` with `shift` or `stride",
}
_ADVICE = {
    "shard": "Several trainers share a pass if they use the same job_name, without tfdist.shard",
    "zip` or `enumerate": "Pair the data at its source, as from_tensor_slices((x, y)) does",
}


def check_dynamic(dataset: Any) -> None:
    """Rejects a dataset that dynamic sharding would change.

    Args:
        dataset: A `tf.data.Dataset`. What the functions of `interleave` and `flat_map` do within one element of their
            source is allowed.

    Raises:
        ConfigError: If a step depends on position.
    """
    step = _find(dataset)
    if step is None:
        return
    advice = _ADVICE.get(step, f"Put `{step}` after `distribute`")
    raise ConfigError(
        f"dataset has a `{step}`, which depends on the position of an element; with dynamic sharding every worker "
        f"counts separately, so elements would be lost, duplicated or wrongly paired. {advice}; or use "
        'sharding="data" or "off".'
    )


def gathers(dataset: Any) -> bool:
    """Whether a dataset combines elements, as `batch` does.

    If each worker runs such a step on part of the data, each makes its own short last batch, or drops it with
    `drop_remainder`: 100 elements in batches of 10 may come as 11 batches from two workers, or as 9.
    """
    return bool(_GATHERING.fullmatch(type(dataset).__name__)) or any(map(gathers, dataset._inputs()))


def _find(dataset: Any) -> str | None:
    kind = type(dataset).__name__
    inputs = dataset._inputs()
    if kind in _STEPS and not _is_anywhere(dataset):
        return _STEPS[kind]
    return next((step for step in map(_find, inputs) if step is not None), None)


def _is_anywhere(dataset: Any) -> bool:
    """Whether a step does not depend on position in this use of it."""
    kind = type(dataset).__name__
    if kind == "_WindowDataset":  # one after the other, as `batch` takes elements
        size, shift, stride = map(tf.get_static_value, (dataset._size, dataset._shift, dataset._stride))
        return bool(shift == size and stride == 1)
    return kind == "_DirectedInterleaveDataset" and _is_random(dataset._inputs()[0])


def _is_random(dataset: Any) -> bool:
    """Whether the choice comes from `sample_from_datasets`, which does not depend on position."""
    return type(dataset).__name__ == "_RandomDataset" or any(map(_is_random, dataset._inputs()))
