"""Recorded steps: what becomes of the clocks, and small networks recorded for real, by clock and by throughput."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.command.bench import option
from tfdist.command.bench.scale import scale_operation, scale_record, scale_step
from tfdist.command.bench.scale.scale_record import Sample
from tfdist.command.bench.train import train
from tfdist.errors import ConfigError


def options(folder: Path, *words: str) -> option.Record:
    given = ["--record", "digits", "--image-size", "8", "--batch-size", "4", "--output", f"{folder}/step.json"]
    parsed = option.parse(["scale", *given, *words])
    assert isinstance(parsed, option.Record)
    return parsed


def layer(name: str, *shapes: tuple[int, ...]) -> Any:
    return SimpleNamespace(name=name, trainable_variables=[SimpleNamespace(shape=shape) for shape in shapes])


def test_medians_of_the_clocks(tmp_path: Path) -> None:
    """Forward 1, 2, 3; the layers at 4, 5, 9 and 6, 7, 10; steps of 8, 9, 13."""
    samples = [Sample(1, (4, 6), 8), Sample(3, (9, 10), 13), Sample(2, (5, 7), 9)]
    step = scale_record.summarised(options(tmp_path), [layer("b", (2, 3), (3,)), layer("a", (5,))], samples, "a clock")
    assert (step.forward_s, step.update_s, step.seconds) == (2, 2, 9)
    assert [(each.name, each.backward_s, each.gradients) for each in step.layers] == [
        ("b", 3, (12, 24)),
        ("a", 2, (20,)),
    ]
    assert step.deviation == pytest.approx(np.std([8, 9, 13], ddof=1) / 10)
    assert step.sources["times"] == "a clock"


def test_one_step_has_no_deviation(tmp_path: Path) -> None:
    step = scale_record.summarised(options(tmp_path), [layer("a", (5,))], [Sample(1, (4,), 4)], "")
    assert (step.deviation, step.update_s) == (0, 0)


def test_throughput_is_shared_out(tmp_path: Path) -> None:
    """4 images at 2 images/s are 2 s: a third of them forward."""
    chosen = options(tmp_path, "--throughput", "2")
    model = train.build(chosen)
    step = scale_record.shared_out(chosen, model, 2.0)
    assert step.seconds == pytest.approx(2)
    assert step.forward_s == pytest.approx(2 / 3)
    dense, convolution = step.layers
    # 16 filters of 3 x 3 x 3 at 6 x 6 places, and a matrix of 16 x 1000.
    assert convolution.backward_s / dense.backward_s == pytest.approx(36 * 27 * 16 / 16_000)
    assert dense.gradients == (4000, 64_000)
    assert step.sources["gradient_bytes"].startswith("digits of Keras 3.")


def test_clocks_follow_each_other_and_the_step_trains() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(50),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    images = tf.random.stateless_uniform((4, 8, 8, 3), (1, 2))
    labels = tf.constant([1, 2, 3, 4])
    before = [variable.numpy() for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, model(images)))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    stamps = [
        float(stamp) for stamp in scale_record._timed_step(model, scale_operation.backward(model))(images, labels)
    ]
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
    step = scale_step.read(tmp_path / "step.json")
    assert (step.model, step.image_size, step.batch_size, step.dtype) == ("digits", 8, 4, "float32")
    assert 0 < step.forward_s < step.seconds and step.update_s > 0
    assert step.gradients == [4000, 64_000, 64, 4 * 27 * 16]
    assert step.deviation > 0
    text = capsys.readouterr().out
    assert "2 layers, 4 gradients of 0.1 MB" in text and f"written to {tmp_path}/step.json" in text


def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind}:0"])
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES= tfdist bench scale"):
        scale_record.run(options(tmp_path))
