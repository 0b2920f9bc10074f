"""Records one training step layer by layer, by a clock inside the graph or from a known throughput. Trains nothing.

On the processor: the graph of the step holds a clock behind the loss and behind the gradients of every layer, each
clock after the one before, so it tells when a bucket that ends with this layer could start. The optimizer waits
for all gradients, as it does when they are reduced; its time is what is left of the step.

With a throughput (of a GPU, by `tfdist bench train` or published): a third of the step is forward and two thirds are
backward, as the operations are, and the layers share the latter by their operations (`scale_operation`). Layers without
matrices then cost nothing and the others all run at one speed: an assumption.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.command.bench.measure import machine, rank, statistic
from tfdist.command.bench.measure.progress import Progress
from tfdist.command.bench.measure.request import Record
from tfdist.command.bench.scale import scale_operation, scale_step
from tfdist.command.bench.scale.scale_step import Layer, Step
from tfdist.command.bench.train import train
from tfdist.errors import ConfigError


@dataclass(frozen=True)
class Sample:
    """One step: seconds until the loss, until the gradients of each layer, and until everything was done."""

    forward_s: float
    ready_s: tuple[float, ...]
    step_s: float


def run(options: Record) -> None:
    """Writes the step, and says what it is."""
    if options.throughput is None:
        check_processor()
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        tf.config.threading.set_inter_op_parallelism_threads(rank.INTER_OP_THREADS)
    model = train.build(options)
    step = measured(options, model) if options.throughput is None else shared_out(options, model, options.throughput)
    scale_step.write(options.output, step)
    gradients = step.gradients
    print(
        f"{step.model}, {step.image_size}x{step.image_size}, batch {step.batch_size}: {step.seconds * 1e3:.1f} ms "
        f"(forward {step.forward_s * 1e3:.1f}, update {step.update_s * 1e3:.1f}), {len(step.layers)} layers, "
        f"{len(gradients)} gradients of {sum(gradients) / 1e6:.1f} MB in all, deviation {100 * step.deviation:.1f} %"
    )
    print(f"written to {options.output}")


def check_processor() -> None:
    """Raises ConfigError if TensorFlow would use a GPU."""
    if tf.config.list_physical_devices("GPU"):
        raise ConfigError(
            "a clock in the graph does not see when a GPU is done. Time the step by tfdist bench train and give "
            "its --throughput, or hide the GPU to record this processor: CUDA_VISIBLE_DEVICES= tfdist bench scale ..."
        )


def shared_out(options: Record, model: keras.Model, throughput: float) -> Step:
    """The step of a GPU that computes so many images a second."""
    seconds = options.batch_size / throughput
    return Step(
        model=options.model,
        image_size=options.image_size,
        batch_size=options.batch_size,
        forward_s=seconds / 3,
        layers=scale_operation.share_out(model, seconds * 2 / 3),
        sources={
            "gradient_bytes": f"{options.model} of Keras {keras.__version__}",
            "forward_ms": f"assumed: a third of {options.batch_size} images at {throughput:g} images/s",
            "backward_ms": "assumed: two thirds of it, shared out by the multiplications of each layer",
        },
    )


def measured(options: Record, model: keras.Model) -> Step:
    """The step as this processor takes it."""
    scale_operation.check(model)
    layers = scale_operation.backward(model)
    samples = _samples(options, model, layers)
    facts = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    how = f"tfdist bench scale --record, median of {options.steps} steps, {options.threads} threads; {facts}"
    return summarised(options, layers, samples, how)


def summarised(options: Record, layers: Sequence[Any], samples: Sequence[Sample], how: str) -> Step:
    """The medians of the samples; `layers` in backward order."""
    forward_s = statistic.median([sample.forward_s for sample in samples])
    ready = [statistic.median(times) for times in zip(*(sample.ready_s for sample in samples), strict=True)]
    # Medians of times that follow each other do so too, in exact arithmetic and in this.
    backward = [later - earlier for earlier, later in pairwise([forward_s, *ready])]
    steps = [sample.step_s for sample in samples]
    return Step(
        model=options.model,
        image_size=options.image_size,
        batch_size=options.batch_size,
        forward_s=forward_s,
        layers=tuple(
            Layer(layer.name, seconds, scale_operation.gradient_sizes(layer))
            for layer, seconds in zip(layers, backward, strict=True)
        ),
        update_s=max(0.0, statistic.median(steps) - ready[-1]),
        deviation=statistics.stdev(steps) / statistics.fmean(steps) if len(steps) > 1 else 0.0,
        sources={
            "times": how,
            "relative_deviation": f"of {len(steps)} steps of one process, not of the ranks of a job",
        },
    )


def _samples(options: Record, model: keras.Model, layers: Sequence[keras.layers.Layer]) -> list[Sample]:
    numbers = np.random.default_rng(0)
    images = tf.constant(numbers.random((options.batch_size, options.image_size, options.image_size, 3), np.float32))
    labels = tf.constant(numbers.integers(0, train.CLASSES, options.batch_size))
    step = _timed_step(model, layers)
    for _ in range(options.warmup):
        step(images, labels)
    progress = Progress(f"{options.model}, steps", options.steps)
    samples = []
    for number in range(options.steps):
        begin = time.perf_counter()
        start, forward, *ready = (float(stamp) for stamp in step(images, labels))
        seconds = time.perf_counter() - begin
        samples.append(Sample(forward - start, tuple(stamp - start for stamp in ready), seconds))
        progress.done(number + 1)
    return samples


def _timed_step(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> Any:
    """A function of images and labels that returns clocks: at its start, behind the loss, behind each layer.

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
