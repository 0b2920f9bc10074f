"""Recorded steps: multiplications by hand, what becomes of the clocks, and small networks recorded for real."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.command.bench import option, scale, scale_record
from tfdist.command.bench.train import train
from tfdist.errors import ConfigError


def options(folder: Path, *words: str) -> option.Record:
    given = ["--record", "digits", "--image-size", "8", "--batch-size", "4", "--output", f"{folder}/step.json"]
    parsed = option.parse(["scale", *given, *words])
    assert isinstance(parsed, option.Record)
    return parsed


def built(*layers: Any, shape: tuple[int, ...] = (8, 6, 3)) -> keras.Model:
    return keras.Sequential([keras.layers.Input(shape), *layers])


@pytest.mark.parametrize(
    ("layer", "operations"),
    [
        # 5 x 5 filters of 3 channels at 8 x 6 places, 7 of them.
        (keras.layers.Conv2D(7, 5, padding="same"), 48 * 5 * 5 * 3 * 7),
        # Every second place in both directions.
        (keras.layers.Conv2D(7, 5, strides=2, padding="same"), 12 * 5 * 5 * 3 * 7),
        # One filter for each of the 3 channels.
        (keras.layers.DepthwiseConv2D(3, padding="same"), 48 * 3 * 3 * 3),
        # Scale and shift of 3 channels.
        (keras.layers.BatchNormalization(), 0),
        # At each of the 8 x 6 places.
        (keras.layers.Dense(5), 48 * 3 * 5),
        # The 3 channels of 8 x 6 places come last here, and first there: 8 channels at 6 x 3 places.
        (keras.layers.Conv2D(7, 5, padding="same", data_format="channels_first"), 18 * 5 * 5 * 8 * 7),
    ],
)
def test_layers_by_hand(layer: Any, operations: int) -> None:
    (found,) = scale_record.backward(built(layer))
    assert scale_record.operations(found) == operations


def test_backward_order_goes_through_models_inside_models() -> None:
    inner = built(keras.layers.Dense(4, name="b"), keras.layers.Dense(4, name="c"))
    model = built(keras.layers.Dense(3, name="a"), inner, keras.layers.ReLU(), keras.layers.Dense(2, name="d"))
    assert [layer.name for layer in scale_record.backward(model)] == ["d", "c", "b", "a"]


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="kernel is bfloat16, but only float32 variables can be recorded"):
        scale_record.backward(built(keras.layers.Dense(3, dtype="bfloat16"), shape=(3,)))


# Multiplications in 10^9 at the usual image size: He et al. (2016), table 1 (ResNet-50: 3.8 without the shortcuts'
# convolutions, in the variant that halves in the first one); Howard et al. (2017), table 8 (MobileNet: 0.569).
@pytest.mark.parametrize(("name", "billions", "parameters"), [("ResNet50", 3.86, 25.6e6), ("MobileNet", 0.569, 4.25e6)])
def test_networks_of_keras(tmp_path: Path, name: str, billions: float, parameters: float) -> None:
    model = getattr(keras.applications, name)(weights=None)
    layers = scale_record.backward(model)
    assert sum(map(scale_record.operations, layers)) == pytest.approx(billions * 1e9, rel=0.02)
    gradients = scale_record.shared_out(options(tmp_path, "--throughput", "1"), layers, 1.0).gradients
    trained = sum(variable.numpy().size for variable in model.trainable_variables)
    assert sum(gradients) == 4 * trained == pytest.approx(4 * parameters, rel=0.01)
    assert len(gradients) == len(model.trainable_variables)


def layer(name: str, *shapes: tuple[int, ...]) -> Any:
    return SimpleNamespace(name=name, trainable_variables=[SimpleNamespace(shape=shape) for shape in shapes])


def test_medians_of_the_clocks(tmp_path: Path) -> None:
    """Forward 1, 2, 3; the layers at 4, 5, 9 and 6, 7, 10; steps of 8, 9, 13."""
    layers = [layer("b", (2, 3), (3,)), layer("a", (5,))]
    step = scale_record.measured(options(tmp_path), layers, [(1, 4, 6, 8), (3, 9, 10, 13), (2, 5, 7, 9)])
    assert (step.forward_s, step.update_s, step.seconds) == (2, 2, 9)
    assert step.layers == (scale.Layer("b", 3, (12, 24)), scale.Layer("a", 2, (20,)))
    assert step.deviation == pytest.approx(np.std([8, 9, 13], ddof=1) / 10)
    assert "median of 3 steps, 1 threads; " in step.sources["times"]


def test_one_step_has_no_deviation(tmp_path: Path) -> None:
    step = scale_record.measured(options(tmp_path), [layer("a", (5,))], [(1, 4, 4)])
    assert (step.deviation, step.update_s) == (0, 0)


def test_a_throughput_is_shared_out(tmp_path: Path) -> None:
    """4 images at 2 images/s are 2 s: a third of them forward."""
    scale_record.run(options(tmp_path, "--throughput", "2"))
    step = scale.read(scale.Step, tmp_path / "step.json")
    assert (step.seconds, step.forward_s) == pytest.approx((2, 2 / 3))
    dense, convolution = step.layers
    # 16 filters of 3 x 3 x 3 at 6 x 6 places, and a matrix of 16 x 1000.
    assert convolution.backward_s / dense.backward_s == pytest.approx(36 * 27 * 16 / 16_000, rel=1e-4)
    assert dense.gradients == (4000, 64_000)
    assert step.sources["gradient_bytes"].startswith("digits of Keras 3.")


def test_clocks_follow_each_other_and_the_step_trains() -> None:
    keras.utils.set_random_seed(1)
    dense = (keras.layers.Dense(50), keras.layers.Dense(10, "softmax"))
    model = built(keras.layers.Flatten(), *dense, shape=(8, 8, 3))
    images = tf.random.stateless_uniform((4, 8, 8, 3), (1, 2))
    labels = tf.constant([1, 2, 3, 4])
    before = [variable.numpy() for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, model(images)))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    step = scale_record.timed_step(model, scale_record.backward(model))
    stamps = [float(stamp) for stamp in step(images, labels)]
    assert len(stamps) == 4  # start, loss, two layers
    assert stamps == sorted(stamps)
    for variable, old, gradient in zip(model.trainable_variables, before, gradients, strict=True):
        np.testing.assert_allclose(variable.numpy(), old - train.RATE * gradient.numpy(), rtol=1e-5, atol=1e-7)


def test_run_writes_a_step_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, int] = {}  # TensorFlow has started already, so its threads cannot be set any more
    for kind in ("intra", "inter"):
        monkeypatch.setattr(
            tf.config.threading,
            f"set_{kind}_op_parallelism_threads",
            lambda count, kind=kind: seen.update({kind: count}),
        )
    scale_record.run(options(tmp_path, "--steps", "3", "--warmup", "1", "--threads", "2"))
    assert seen == {"intra": 2, "inter": 1}
    step = scale.read(scale.Step, tmp_path / "step.json")
    assert (step.model, step.image_size, step.batch_size, step.dtype) == ("digits", 8, 4, "float32")
    assert 0 < step.forward_s < step.seconds and step.update_s > 0
    assert step.gradients == [4000, 64_000, 64, 4 * 27 * 16]
    assert step.deviation > 0
    text = capsys.readouterr().out
    assert "2 layers, 4 gradients of 0.1 MB" in text and f"written to {tmp_path}/step.json" in text


def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"{kind}:0"])
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES= tfdist bench scale"):
        scale_record.run(options(tmp_path))
