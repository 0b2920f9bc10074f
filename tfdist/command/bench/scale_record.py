"""Records one training step layer by layer, with clocks inside the graph or from a known throughput.

On the CPU: the graph of the step has a clock after the loss and after the gradients of every layer, in order, which
shows when a bucket that ends with this layer could start. The optimizer waits for all gradients, as it does when they
are reduced; it accounts for the rest of the step.

With a throughput (of a GPU, from `tfdist bench train` or published): a third of the step is forward and two thirds are
backward, like the number of operations, and the backward time is divided among the layers by their operations. This
assumes that layers without matrices cost nothing and all others run at the same speed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.command.bench import scale
from tfdist.command.bench.measure import machine, rank
from tfdist.command.bench.measure.progress import Progress
from tfdist.command.bench.measure.request import Record
from tfdist.command.bench.scale import Layer, Step
from tfdist.command.bench.train import train
from tfdist.errors import ConfigError
from tfdist.native import hardware

# Of one step: seconds until the loss, until the gradients of each layer, and until the end.
Sample = Sequence[float]


def run(options: Record) -> None:
    """Writes the step to a file, and prints a summary."""
    if options.throughput is None:
        check_processor()
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        tf.config.threading.set_inter_op_parallelism_threads(rank.INTER_OP_THREADS)
    model = train.build(options)
    layers = backward(model)
    if options.throughput is None:
        step = measured(options, layers, _samples(options, model, layers))
    else:
        step = shared_out(options, layers, options.batch_size / options.throughput)
    scale.write(options.output, step)
    gradients = step.gradients
    print(
        f"{step.model}, {step.image_size}x{step.image_size}, batch {step.batch_size}: {step.seconds * 1e3:.1f} ms "
        f"(forward {step.forward_s * 1e3:.1f}, update {step.update_s * 1e3:.1f}), {len(step.layers)} layers, "
        f"{len(gradients)} gradients of {sum(gradients) / 1e6:.1f} MB in all, deviation {100 * step.deviation:.1f} %"
    )
    print(f"written to {options.output}")


def check_processor() -> None:
    """Raises ConfigError if TensorFlow would use a GPU."""
    if hardware.gpus():
        raise ConfigError(
            "a clock in the graph cannot see when a GPU is done. Time the step with tfdist bench train and pass its "
            "--throughput, or hide the GPU to record the CPU: CUDA_VISIBLE_DEVICES= tfdist bench scale ..."
        )


def backward(model: Any) -> list[Any]:
    """The layers with trainable variables, last one first, including those of nested models.

    Raises:
        ConfigError: If a variable is not float32.
    """
    for variable in model.trainable_variables:
        if str(variable.dtype) != "float32":
            raise ConfigError(
                f"variable {variable.path} is {variable.dtype}, but only float32 variables can be recorded. "
                "Record the step with the default of keras.config.set_floatx"
            )
    return [layer for layer in reversed(list(_flat(model))) if layer.trainable_variables]


def _flat(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _flat(layer)
        else:
            yield layer


def operations(layer: Any) -> int:
    """The multiplications in the forward pass of one image.

    A weight of two or more dimensions (the kernel of a convolution, depthwise or not, or of a dense layer) is applied
    once at every position of the layer's output; vectors (bias, scale) are ignored. Backpropagation takes
    twice as many: the same for the gradient of the input and for that of the weight (Goodfellow, Bengio, Courville
    (2016), "Deep Learning", section 6.5.6).
    """
    shape = tuple(layer.output.shape)[1:]
    first = getattr(layer, "data_format", "channels_last") == "channels_first"
    places = math.prod(shape[1:] if first else shape[:-1])
    return sum(places * math.prod(v.shape) for v in layer.trainable_variables if len(v.shape) > 1)


def shared_out(options: Record, layers: Sequence[Any], seconds: float) -> Step:
    """A step with this duration; `layers` in backward order."""
    counts = list(map(operations, layers))
    sources = {
        "gradient_bytes": f"{options.model} of Keras {keras.__version__}",
        "forward_ms": f"assumed: a third of {options.batch_size} images at {options.throughput:g} images/s",
        "backward_ms": "assumed: two thirds of it, divided by the multiplications of each layer",
    }
    return _step(options, layers, seconds / 3, [seconds * 2 / 3 * count / sum(counts) for count in counts], sources)


def measured(options: Record, layers: Sequence[Any], samples: Sequence[Sample]) -> Step:
    """The medians of the samples; `layers` in backward order."""
    # Medians of increasing times are increasing too, even in floating point.
    *ends, step_s = map(statistics.median, zip(*samples, strict=True))
    steps = [sample[-1] for sample in samples]
    facts = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    sources = {
        "times": f"tfdist bench scale --record, median of {len(steps)} steps, {options.threads} threads; {facts}",
        "relative_deviation": f"of {len(steps)} steps of one process, not of the ranks of a job",
    }
    step = _step(options, layers, ends[0], [later - earlier for earlier, later in pairwise(ends)], sources)
    deviation = statistics.stdev(steps) / statistics.fmean(steps) if len(steps) > 1 else 0.0
    return replace(step, update_s=max(0.0, step_s - ends[-1]), deviation=deviation)


def _step(
    options: Record, layers: Sequence[Any], forward_s: float, backward_s: Sequence[float], sources: dict[str, str]
) -> Step:
    parts = tuple(
        Layer(layer.name, seconds, tuple(4 * math.prod(v.shape) for v in reversed(layer.trainable_variables)))
        for layer, seconds in zip(layers, backward_s, strict=True)
    )
    return Step(options.model, options.image_size, options.batch_size, forward_s, parts, sources=sources)


def _samples(options: Record, model: keras.Model, layers: Sequence[keras.layers.Layer]) -> list[Sample]:
    numbers = np.random.default_rng(0)
    images = tf.constant(numbers.random((options.batch_size, options.image_size, options.image_size, 3), np.float32))
    labels = tf.constant(numbers.integers(0, train.CLASSES, options.batch_size))
    step = timed_step(model, layers)
    for _ in range(options.warmup):
        step(images, labels)
    progress = Progress(f"{options.model}, steps", options.steps)
    samples: list[Sample] = []
    for number in range(options.steps):
        begin = time.perf_counter()
        start, *ends = (float(stamp) for stamp in step(images, labels))
        samples.append([*(end - start for end in ends), time.perf_counter() - begin])
        progress.done(number + 1)
    return samples


def timed_step(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> Any:
    """A function of images and labels that returns clocks: at its start, after the loss, after each layer.

    Stateful operations of a `tf.function` run in the order of the program, so each clock follows the one before.
    """
    optimizer = keras.optimizers.SGD(train.RATE, momentum=0.9)
    optimizer.build(model.trainable_variables)
    groups = [layer.trainable_variables for layer in layers]
    variables = [variable for group in groups for variable in group]

    @tf.function(jit_compile=False)
    def step(images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        stamps = [tf.timestamp()]
        with tf.control_dependencies(stamps):
            images = tf.identity(images)
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
            loss = tf.reduce_mean(losses)
        stamps.append(_clock_behind([loss]))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        left = iter(gradients)
        stamps += [_clock_behind([next(left) for _ in group]) for group in groups]
        with tf.control_dependencies(stamps[-1:]):
            optimizer.apply([tf.identity(gradient) for gradient in gradients], variables)
        return stamps

    return step


def _clock_behind(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    with tf.control_dependencies(tensors):
        return tf.timestamp()
