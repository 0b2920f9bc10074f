"""How `tfdist.shard` split the training data of a `fit`: not its validation data, nor that of another `fit`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import errors
from tfdist.input import global_part, mark, outline, part, pipeline
from tfdist.input.global_part import GlobalPart
from tfdist.native import keras_version

HIDDEN = (
    "the learning rate is multiplied by the number of ranks ({size}), since this fit does not show that its data comes "
    "from tfdist.shard, though data was sharded with global_batch. Fit what tfdist.shard returned or a tf.data "
    "pipeline built on it, not one through a generator, a file or NumPy; or pass scale_learning_rate=False."
)
# Losses that are means over the samples of a batch.
_MEANS = ("sum_over_batch_size", "mean")


def remainders(model: keras.Model) -> set[str]:
    """The `remainder` of each shard that the running `fit` trains on; empty if none of it came from `tfdist.shard`."""
    return mark.of(_data(model))


def global_batch(model: keras.Model, data: Any = None) -> int | None:
    """The `global_batch` of the shard that the running `fit` trains on, or of the data; None without one."""
    return next(iter(mark.global_batches([*_data(model), data])), None)


def max_local_batch(model: keras.Model, name: str = "x") -> int | None:
    """The least `max_local_batch` of the shards in an argument of the running `fit`; None without one."""
    parts = mark.global_parts(keras_version.arguments_of_fit(model).get(name))
    return min((part.max_local_batch for part in parts if part.max_local_batch is not None), default=None)


def global_parts(model: keras.Model) -> list[GlobalPart]:
    """The parts of global batches that the running `fit` trains on."""
    return mark.global_parts(_data(model))


def in_stored_order(model: keras.Model) -> list[GlobalPart]:
    """The parts made of arrays in a running `fit` that does not shuffle them, though its `shuffle` asks for it."""
    arguments = keras_version.arguments_of_fit(model)
    parts = mark.global_parts(arguments.get("x")) if arguments.get("shuffle") else []
    return [part for part in parts if part.untold_order]


def start_at(model: keras.Model, batch: int) -> bool:
    """Makes the next pass of a running `fit` over its data start at a batch, if the data can do that; 0 undoes it.

    Returns:
        Whether it starts there: the batches before it are not drawn.
    """
    x = keras_version.arguments_of_fit(model).get("x")
    shard, _ = pipeline.elastic_part_of(x) if isinstance(x, tf.data.Dataset) else (None, 0)
    if not isinstance(shard, GlobalPart) or shard.changes:  # an elastic fit keeps its own position
        return False
    shard.deal(batch)
    return True


def reshuffles(model: keras.Model) -> bool:
    """Whether the data of a running `fit` comes in another order in each epoch, as far as can be seen."""
    x = keras_version.arguments_of_fit(model).get("x")
    return isinstance(x, tf.data.Dataset) and pipeline.reshuffles(x)


def may_hide_global_batch(model: keras.Model) -> bool:
    """Whether the data of `fit` does not come from a shard, as far as can be seen, though one has a `global_batch`."""
    return not remainders(model) and part.any_global()


def need_global_batches(model: keras.Model) -> None:
    """Rejects a `fit` whose data has a `global_batch`, but whose steps would not be those of one process.

    Raises:
        ConfigError: If the data was regrouped, is mixed, or a loss is no mean; says what to do.
    """
    data = _data(model)
    found = sorted(mark.global_batches(data))
    if not found:
        return
    if len(found) > 1:
        raise errors.ConfigError(f"the data comes from shards with different global_batch: {found}. Use one for all.")
    if any(pipeline.regroups_after_part(each) for each in mark.datasets_in(data)):
        raise errors.ConfigError(global_part.batched_again(found[0]))
    for loss, reduction in losses_without_mean(model):
        raise errors.ConfigError(
            f"global_batch={found[0]} needs losses that are means over the samples, since the ranks are weighted by "
            f"samples; {loss} has reduction={reduction!r}. Omit reduction, and adapt the learning rate if it was a sum."
        )


def losses_without_mean(model: keras.Model) -> list[tuple[str, str]]:
    """The class and the reduction of each compiled loss that says that it is no mean over the samples."""
    found = [(type(loss).__name__, getattr(loss, "reduction", "mean")) for loss in keras.tree.flatten(model.loss)]
    return [(name, reduction) for name, reduction in found if reduction not in _MEANS]


def validation_leaves_out(model: keras.Model) -> bool:
    """Whether the validation data of the running `fit` comes from a shard that has dropped samples, or may have."""
    return mark.leaves_out(keras_version.arguments_of_fit(model).get("validation_data"))


def _data(model: keras.Model) -> list[Any]:
    arguments = keras_version.arguments_of_fit(model)
    return [arguments.get(name) for name in ("x", "y", "sample_weight")]


def outline_of_arrays(model: keras.Model) -> str | None:
    """Equal on two ranks whose running `fit` got the same NumPy arrays; None if it did not get such arrays."""
    arrays = keras.tree.flatten(keras_version.arguments_of_fit(model).get("x"))
    if not arrays or not all(isinstance(array, np.ndarray) and array.ndim for array in arrays):
        return None
    return " ".join(f"{len(array)} {outline.of_array(array)}" for array in arrays)


def is_uneven(model: keras.Model) -> bool:
    """Whether ranks may have unequal numbers of batches in the running `fit`, and so join."""
    return "join" in remainders(model)
