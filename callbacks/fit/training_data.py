"""How `tfdist.shard` split the training data of a `fit`: not its validation data, nor that of another `fit`."""

from __future__ import annotations

import keras

from tfdist.input import mark
from tfdist.native import keras_version


def remainders(model: keras.Model) -> set[str]:
    """The `remainder` of each shard that the running `fit` trains on; empty if none of it came from `tfdist.shard`."""
    arguments = keras_version.arguments_of_fit(model)
    return mark.of([arguments.get(name) for name in ("x", "y", "sample_weight")])


def is_uneven(model: keras.Model) -> bool:
    """Whether ranks may have unequal numbers of batches in the running `fit`, and so join."""
    return "join" in remainders(model)
