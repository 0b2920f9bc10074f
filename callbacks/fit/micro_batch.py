"""A training step that takes its batch in parts, to need less memory, and makes one update. Not a callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import errors
from tfdist.callbacks.fit import training_data
from tfdist.input.global_part import rows_between
from tfdist.native import keras_version
from tfdist.ops.graph import replica
from tfdist.training import distribution, model_optimizer
from tfdist.training.gradients import scaled
from tfdist.training.sync_batch_norm import synchronized_layers

_Take = Callable[[tf.Tensor], tuple[list[Any], Any]]
# A limit that no batch exceeds.
UNLIMITED = tf.int64.max


class MicroBatches:
    """A batch as contiguous parts of at most `limit` samples: as few as possible, of sizes that differ by at most one.

    Args:
        batch: What a step gets: a structure of tensors, also ragged and sparse ones, with a row for each sample, and of
            None.
        samples: int64 scalar, how many there are.
        limit: int64 scalar, 1 or more.

    Attributes:
        samples: As given.
        count: int64 scalar, the number of parts.

    Raises:
        ConfigError: If something in the batch has no rows. Where it has another number of them than there are samples,
            the step fails with an `InvalidArgumentError`.
    """

    def __init__(self, batch: Any, samples: tf.Tensor, limit: tf.Tensor) -> None:
        self._batch, self.samples = batch, samples
        self.count = tf.maximum((samples - 1) // limit + 1, 1)
        for leaf in tf.nest.flatten(batch):
            if leaf is not None:
                self._check_rows(leaf)

    def part(self, number: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """A part by its number, and its share of the samples as a float64 scalar."""
        first, end = (each * self.samples // self.count for each in (number, number + 1))
        part = tf.nest.map_structure(lambda leaf: None if leaf is None else rows_between(leaf, first, end), self._batch)
        return part, tf.cast(end - first, tf.float64) / tf.cast(self.samples, tf.float64)

    def _check_rows(self, leaf: Any) -> None:
        shape = tf.TensorShape(leaf.shape)
        if not shape.rank:
            raise errors.ConfigError(
                "max_local_batch splits batches by samples, so everything in a batch needs one row for each sample; "
                f"received shape {shape}. Repeat what belongs to all samples for each of them, and give what has no "
                "known shape one by tf.ensure_shape, in a map after tfdist.shard."
            )
        tf.debugging.assert_equal(
            tf.cast(tf.shape(leaf)[0], tf.int64),
            self.samples,
            "max_local_batch splits batches by samples, so everything in a batch needs one row for each sample",
        )


def take_step(model: keras.Model, step: Callable[[Any], Any], parts: MicroBatches) -> Any:
    """Takes a training step of Keras over each part, and then makes one update from the mean of their gradients.

    The mean weights the parts by their samples, so it is the gradient of a loss that is a mean over the samples of the
    batch. What a step counts in metrics adds up, as over several steps.

    Args:
        model: The model, whose optimizer is distributed.
        step: Its training step by Keras.
        parts: The parts of a batch.

    Returns:
        What `step` returned for the last part.
    """
    asked: list[distribution.Update] = []

    def take(number: tf.Tensor) -> tuple[list[Any], Any]:
        """The gradients over one part, times its share of the samples, and what the step returned."""
        part, share = parts.part(number)
        with (
            distribution.held() as held,
            keras_version.weighing_losses(model, share * tf.cast(parts.samples, tf.float64)),
        ):
            logs = step(part)
        asked[:] = held
        return [scaled(gradient, share) for each in held for gradient in each.gradients if gradient is not None], logs

    def pairs() -> list[tuple[Any, Any]]:
        """The gradients that the last call of `take` got, and their variables."""
        found = [pair for each in asked for pair in zip(each.gradients, each.variables, strict=True)]
        return [(gradient, variable) for gradient, variable in found if gradient is not None]

    if tf.executing_eagerly():
        sums, logs = _take_eagerly(take, parts.count)
    else:
        sums, logs = _take_in_graph(take, pairs, parts.count)
    left = iter(sums)
    for each in asked:
        means = [None if gradient is None else next(left) for gradient in each.gradients]
        each.optimizer.apply(means, each.variables)
    return logs


def _take_eagerly(take: _Take, count: tf.Tensor) -> tuple[list[Any], Any]:
    sums, logs = take(tf.constant(0, tf.int64))
    for number in range(1, int(count)):
        gradients, logs = take(tf.constant(number, tf.int64))
        sums = [_sum(_tensors_of(one), other) for one, other in zip(sums, gradients, strict=True)]
    return sums, logs


def _take_in_graph(take: _Take, pairs: Callable[[], list[tuple[Any, Any]]], count: tf.Tensor) -> tuple[list[Any], Any]:
    """The step is traced once, and called in a loop and, for the last part, after it: so the gradients of the last
    layers can be reduced while those of the first ones are computed, as without parts.
    """
    traced = tf.function(take, autograph=False)
    traced.get_concrete_function(tf.TensorSpec([], tf.int64))
    starts = [_start(gradient, variable) for gradient, variable in pairs()]

    def body(number: tf.Tensor, sums: Sequence[Any]) -> tuple[tf.Tensor, list[Any]]:
        gradients, _ = traced(number)
        return number + 1, [_tensors_of(_sum(one, other)) for one, other in zip(sums, gradients, strict=True)]

    last, sums = tf.while_loop(
        lambda number, _: number < count - 1,
        body,
        (tf.constant(0, tf.int64), [tensors for tensors, _ in starts]),
        shape_invariants=(tf.TensorShape([]), [shapes for _, shapes in starts]),
        parallel_iterations=1,  # the memory of one part at a time
    )
    gradients, logs = traced(last)
    return [_sum(one, other) for one, other in zip(sums, gradients, strict=True)], logs


def _start(gradient: Any, variable: Any) -> tuple[tuple[tf.Tensor, ...], tuple[tf.TensorShape, ...]]:
    """An empty sum of gradients like this one, as `_tensors_of` has it, and what its shapes may become."""
    if not isinstance(gradient, tf.IndexedSlices):
        return (tf.zeros(variable.shape, gradient.dtype),), (tf.TensorShape(variable.shape),)
    row = tuple(variable.shape)[1:]
    empty = tf.zeros([0, *row], gradient.values.dtype), tf.zeros([0], gradient.indices.dtype)
    return empty, (tf.TensorShape([None, *row]), tf.TensorShape([None]))


def _tensors_of(gradient: Any) -> tuple[tf.Tensor, ...]:
    """What changes as gradients are added up."""
    return (gradient.values, gradient.indices) if isinstance(gradient, tf.IndexedSlices) else (gradient,)


def _sum(tensors: Sequence[tf.Tensor], gradient: Any) -> Any:
    """One more gradient added. Rows of an `IndexedSlices` stay rows, as many as the whole batch would have."""
    if isinstance(gradient, tf.IndexedSlices):
        values, indices = (tf.concat(pair, axis=0) for pair in zip(tensors, _tensors_of(gradient), strict=True))
        return tf.IndexedSlices(values, indices, gradient.dense_shape)
    return tf.ensure_shape(tensors[0] + gradient, tensors[0].shape)


def need_parts(model: keras.Model, has_own_step: bool) -> None:
    """Rejects a `fit` whose data has a `max_local_batch`, but whose steps cannot be taken in parts.

    Args:
        model: The model.
        has_own_step: Whether its training step is not that of Keras.

    Raises:
        ConfigError: Says what is in the way, and what to do.
    """
    limit = training_data.max_local_batch(model)
    if training_data.max_local_batch(model, "validation_data") is not None:
        raise errors.ConfigError(
            "the validation data is sharded with max_local_batch, which splits training steps only. Its metrics do not "
            "depend on the batch size: shard it without max_local_batch, with a smaller global_batch, or with batches "
            "of your own, such as tfdist.shard(samples).batch(32)."
        )
    obstacle = "" if limit is None else _obstacle(model, has_own_step)
    if obstacle:
        raise errors.ConfigError(
            f"max_local_batch={limit} lets a step take its batch in parts and make one update, but {obstacle}, or omit "
            "max_local_batch."
        )


def _obstacle(model: keras.Model, has_own_step: bool) -> str:
    """What is in the way, and what to do; empty if nothing is."""
    if has_own_step:
        return (
            f"the train_step of {type(model).__name__} is not that of Keras, and what else it does would be done for "
            "each part. Override compute_loss or call instead"
        )
    if replica.is_wrapped(model.distribute_strategy):
        return (
            f"the model is under {type(model.distribute_strategy).__name__}, for which Keras reads batches before fit "
            "begins. Remove the strategy (each rank is one replica)"
        )
    if model.jit_compile:
        return (
            "jit_compile is True, and XLA needs sizes that are known when it compiles. Compile the model with "
            "jit_compile=False (Keras' default is True on a GPU)"
        )
    if model_optimizer.accumulates(model):
        return (
            "the optimizer has gradient_accumulation_steps, which makes one update of several steps. Set it to None, "
            "and choose a larger global_batch"
        )
    layers = [layer.name for layer in synchronized_layers(model)]
    if layers:
        return (
            f"layer {layers[0]} normalises over the batches of all ranks, and ranks may take unequal numbers of parts. "
            "Use a layer without statistics of the batch, such as keras.layers.GroupNormalization"
        )
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in model.trainable_variables):
        return "the model is quantized to float8, and its scales have no mean over parts. Train it in another dtype"
    return ""
