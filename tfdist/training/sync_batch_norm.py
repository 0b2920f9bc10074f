"""Batch normalisation over the batches of all ranks: a Keras layer, and the same for Keras' own layer. Not a
collective.

Each rank computes mean and variance of its own batch; one allgather of [count, mean, variance] per channel combines
them into those of the concatenated batch, and one all-reduce handles their gradients.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import config, errors
from tfdist.native import keras_version
from tfdist.ops import allgather, allreduce
from tfdist.ops.reduction import Sum
from tfdist.training import gradients
from tfdist.world import runtime

_FIRST_ORDER_ONLY = (
    "gradients of gradients are not supported through batch normalisation over all ranks. Compute the inner gradient "
    "on a model without it, for example with keras.layers.GroupNormalization instead."
)


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalisation whose statistics cover the training batches of all ranks.

    You need it if each rank's batch is too small for its own mean and variance. Output, moving statistics and gradients
    equal those of `keras.layers.BatchNormalization` on the concatenated batches of the ranks. Batches may differ in
    size, and be empty on some ranks. In inference, and with `trainable=False`, it communicates nothing; in a world of
    one it is the ordinary layer.

    With a loss that is a mean over each rank's batch, and `DistributedOptimizer` or `DataParallel` averaging the
    gradients, training on equally large batches equals one process on the concatenated batch. All ranks must call the
    layer in training the same number of times. Gradients of gradients are rejected.

    Files and summaries contain a `keras.layers.BatchNormalization(synchronized=True)` instead, so a model loads without
    tfdist installed, and `tfdist.callbacks.DataParallel` synchronises the loaded layer again. Weights are
    interchangeable between the two layers.

    Args:
        *args: As for `keras.layers.BatchNormalization`.
        synchronized: Must be True. `from_config` also accepts the configuration of an ordinary layer.
        **kwargs: As for `keras.layers.BatchNormalization`: `axis`, `momentum`, `epsilon`, `center`, `scale`, `renorm`,
            initializers, regularizers, constraints, `name`, `dtype`.

    Raises:
        ConfigError: With `synchronized=False`.
        NotInitializedError: When it is called in training before `tfdist.init()`.

    Example:

    ```python
    model = keras.Sequential([keras.layers.Conv2D(32, 3), tfdist.SyncBatchNormalization(), keras.layers.ReLU()])
    ```

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167; the statistics are combined as in `moments`.
    """

    def __init__(self, *args: Any, synchronized: bool = True, **kwargs: Any) -> None:
        if not synchronized:
            raise errors.ConfigError(
                f"SyncBatchNormalization requires synchronized=True; received synchronized={synchronized!r}. For "
                "per-rank statistics use keras.layers.BatchNormalization."
            )
        super().__init__(*args, synchronized=True, **kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SyncBatchNormalization:
        """Makes a layer from the configuration of one, or of an ordinary `BatchNormalization`.

        Args:
            config: As `get_config` returns it.

        Example:

        ```python
        def synchronize(layer):
            ordinary = isinstance(layer, keras.layers.BatchNormalization)
            kind = tfdist.SyncBatchNormalization if ordinary else type(layer)
            return kind.from_config(layer.get_config())

        clone = keras.models.clone_model(model, clone_function=synchronize)
        clone.set_weights(model.get_weights())
        ```
        """
        layer: SyncBatchNormalization = super().from_config({**config, "synchronized": True})
        return layer

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        return moments(self, inputs, mask)


keras_version.publish_as(SyncBatchNormalization, keras.layers.BatchNormalization)


def moments(
    layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance of each channel over the batches of all ranks; every rank must call it.

    Args:
        layer: A built layer; its axis has the channels.
        inputs: This rank's batch, float32 or float64, of the layer's rank.
        mask: None, or True where elements count; has one dimension less than `inputs`.

    Returns:
        Two tensors of shape (channels,) and the dtype of `inputs`. If no rank has an element both are 0.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances"
    (Stanford CS-TR-79-773), the formula for a sample of m + n, for any number of parts: with N = sum n_i, the mean is
    sum n_i m_i / N and the variance sum n_i (v_i + (m_i - mean)^2) / N.
    """
    mean, variance = keras_version.moments_of_process(layer, inputs, mask)
    if runtime.size() == 1 and not config.is_elastic():  # where others may join, the trace stays
        return mean, variance
    counts = _counts(layer, inputs, mask)
    row = [counts] + [
        # The moments of an empty batch are not a number.
        tf.math.multiply_no_nan(tf.reshape(moment, [-1]), tf.cast(counts > 0, moment.dtype))
        for moment in (mean, variance)
    ]
    # Keras numbers layers by what a process built before, which may differ by rank.
    name = re.sub(r"_\d+$", "", layer.name)
    combined = _combine(tf.stack(row), f"moments of {name}")
    return combined[0], combined[1]


@contextlib.contextmanager
def synchronized(model: keras.Model) -> Iterator[None]:
    """Inside, Keras' own `BatchNormalization(synchronized=True)` layers of a model compute moments over all ranks.

    This includes layers of nested models. Weights, configuration and files are not affected. A subclass that overrides
    the computation of moments is left alone, and so is everything in a world of one.

    Args:
        model: A model whose training step runs, or is traced, inside.

    Example:

    ```python
    from tfdist.training.sync_batch_norm import synchronized

    with synchronized(model):
        y = model(x, training=True)
    ```
    """
    found = keras_version.layers_with_keras_moments(model)
    layers = [layer for layer in found if layer.synchronized and (runtime.size() > 1 or config.is_elastic())]
    for layer in layers:
        keras_version.set_moments(layer, functools.partial(moments, layer))
    try:
        yield
    finally:
        for layer in layers:
            keras_version.reset_moments(layer)


def synchronized_statistics(model: keras.Model) -> list[Any]:
    """The moving means and variances that all ranks taking a step update alike, inside `synchronized`."""
    return [variable for layer in synchronized_layers(model) for variable in layer.non_trainable_variables]


def synchronized_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """The layers that normalise over the batches of all ranks, inside `synchronized`."""
    layers = [layer for layer in keras_version.layers_with_keras_moments(model) if layer.synchronized]
    return layers + [layer for layer in keras_version.layers_of(model) if isinstance(layer, SyncBatchNormalization)]


def _counts(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """How many elements of each channel count. They differ by channel where the mask runs along the channels."""
    if mask is None:
        channels = inputs.shape[layer.axis]
        return tf.fill([channels], tf.cast(tf.size(inputs, out_type=tf.int64) // channels, inputs.dtype))
    counting = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
    return tf.reduce_sum(tf.cast(counting, inputs.dtype), keras_version.reduction_axes(layer))


def _combine(row: tf.Tensor, label: str) -> tf.Tensor:
    """Makes [mean, variance] of all ranks from each rank's [count, mean, variance].

    The gradient is written by hand, because that of allgather would gather the rows and sum the gradients of all rows:
    twice the calls and n times the bytes. Each rank's moments fed every rank's result, so upstream gradients are first
    summed over the ranks. If the average of gradients weights the ranks, it multiplies all of this rank's gradient by
    this rank's weight, so contributions from other ranks are rescaled to their weight here.
    """
    weights = gradients.weight()

    @tf.custom_gradient
    def combined(row: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        gathered = allgather.allgather(row[tf.newaxis], name=label)
        counts, means, variances = gathered[:, 0], gathered[:, 1], gathered[:, 2]
        total = tf.reduce_sum(counts, axis=0)
        shares = tf.math.divide_no_nan(counts, total)
        mean = tf.reduce_sum(shares * means, axis=0)
        variance = tf.reduce_sum(shares * (variances + tf.square(means - mean)), axis=0)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            weight = None if weights is None else tf.cast(weights, upstream.dtype)
            weighted = upstream if weight is None else tf.math.multiply_no_nan(upstream, weight)
            (summed,) = allreduce.reduce_figures([weighted], Sum, f"gradient of {label}")
            if weight is not None:
                summed = tf.math.divide_no_nan(summed, weight)
            share = tf.math.divide_no_nan(row[0], total)
            of_mean = share * (summed[0] + 2 * (row[1] - mean) * summed[1])
            of_row = tf.stack([tf.zeros_like(share), of_mean, share * summed[1]])
            return tf.raw_ops.PreventGradient(input=of_row, message=_FIRST_ORDER_ONLY)

        return tf.stack([mean, variance]), gradient

    return combined(row)
