"""The state of a training on several ranks: what all have alike, and what each has for itself. Not files."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import errors
from tfdist.ops.allgather import allgather
from tfdist.ops.allreduce import grouped_allreduce
from tfdist.ops.broadcast import broadcast_variables
from tfdist.ops.object import broadcast_object
from tfdist.ops.reduction import Average
from tfdist.training import adapted_state, model_optimizer
from tfdist.training.local_variable import key_of
from tfdist.world import runtime


def statistics_of_rank(model: keras.Model, keep: Sequence[Any] = ()) -> list[Any]:
    """The floating non-trainable weights, such as moving means, that differ between ranks; every rank must ask.

    Frozen weights do not differ. They are left out for their size, and because the mean of three equal numbers need
    not be that number. Those of local layers are their rank's own.
    """
    local = {key_of(variable) for variable in (*model_optimizer.local_variables(model), *keep)}
    floating = [v for v in model.non_trainable_weights if v.dtype.startswith(("float", "bfloat"))]
    candidates = [v for v in floating if key_of(v) not in local]
    if not candidates or runtime.size() == 1:
        return []
    checksums = np.array([[zlib.crc32(np.asarray(v.value).tobytes()) for v in candidates]], np.int64)
    by_rank = allgather(checksums, name="checksums of statistics").numpy()
    return [v for v, column in zip(candidates, by_rank.T, strict=True) if len(set(column)) > 1]


def average_statistics(model: keras.Model, keep: Sequence[Any] = ()) -> None:
    """Averages the weights that training changes other than by gradients, such as moving means, but not `keep`."""
    statistics = statistics_of_rank(model, keep)
    if not statistics:
        return
    values = [tf.convert_to_tensor(variable.value) for variable in statistics]
    for variable, value in zip(statistics, grouped_allreduce(values, op=Average, name="statistics"), strict=True):
        variable.assign(value)
    adapted_state.follow_variables(model)


def begin_equal(model: keras.Model, root_rank: int, keep: Sequence[Any] = ()) -> None:
    """`broadcast` at the beginning of a `fit`, after a look at what a broadcast does not reach.

    Raises:
        ConfigError: As `broadcast` does.
        MismatchError: If a preprocessing layer has learned something else on each rank.
    """
    adapted_state.require_equal_before_broadcast(model, model_optimizer.local_layers(model))
    broadcast(model, root_rank, keep)


def broadcast(model: keras.Model, root_rank: int, keep: Sequence[Any] = ()) -> None:
    """Gives every rank the weights and optimizer state of one rank. What is a rank's own stays: seeds
    of random layers, gradients that are still being accumulated, and local variables with their slots.

    Args:
        model: A built model.
        root_rank: The rank whose state everybody gets.
        keep: Variables that stay as they are on each rank.

    Raises:
        ConfigError: If the model has no weights.
    """
    if not model.weights:
        raise errors.ConfigError(
            f"model {model.name!r} has no weights, also after its first step was traced, so there is nothing that "
            "ranks could train together. Make variables by add_weight or in layers that are attributes of the model."
        )
    model_optimizer.build_compiled(model)
    if len(model_optimizer.optimizers_of(model)) > 1:
        # Keras builds the others in the first step that uses them, which not every rank may have taken.
        layout = broadcast_object(model_optimizer.layout_of(model), root_rank, name="what optimizers update")
        model_optimizer.build_as(model, layout)
    variables = [*model.weights, *model_optimizer.variables_of(model)]
    local = model_optimizer.state_of_rank(model, keep)
    kept = {id(part) for variable in local for part in (variable, getattr(variable, "value", variable))}
    shared = [v for v in variables if id(v) not in kept and id(v.value) not in kept]
    broadcast_variables(shared, root_rank, name="weights and optimizer state")
    adapted_state.follow_variables(model)
