"""Measures what autotuning finds beside fixed settings, on three models, and prints a table for each.

    python benchmarks/autotune.py [--models mlp,cnn,resnet50] [--ranks N] [--rounds N] [--steps N] [--lossy]

Each model is tuned once, with real times. Then the default, each knob turned alone to each of its values, and the
setting that was found take steps in turn in one job, in rounds that begin with another setting each. A figure is the
median over rounds of the slowest rank's median step. The best of the sweep is chosen by the first half of the rounds,
and compared with what was found in the second: the best of many by the same figures would be the luckiest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

# Steps of a sample, so that it lasts a quarter of a second or more.
MODELS = {"mlp": 100, "cnn": 50, "resnet50": 10}
DEADLINE_S = 3600
WARMUP_STEPS = 2
MOST_STEPS = 100_000


def build(name: str) -> tuple[Any, Any, Any]:
    """A compiled model, and one batch of inputs and labels."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    layers = keras.layers
    if name == "mlp":
        shape: tuple[int, ...] = (64,)
        model = keras.Sequential([keras.Input(shape), *(layers.Dense(256, "relu") for _ in range(4)), layers.Dense(10)])
    elif name == "cnn":
        shape = (32, 32, 3)
        convolutions = [layers.Conv2D(width, 3, strides=2, activation="relu") for width in (32, 64, 128)]
        model = keras.Sequential([keras.Input(shape), *convolutions, layers.Flatten(), layers.Dense(10)])
    else:
        shape = (64, 64, 3)
        model = keras.applications.ResNet50(weights=None, input_shape=shape, classes=10, classifier_activation=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), loss=loss, jit_compile=False)
    generator = np.random.default_rng(2)
    return model, generator.normal(size=(8, *shape)).astype("float32"), generator.integers(0, 10, size=8)


def fixed_settings(default: Any, knobs: Sequence[Any]) -> list[Any]:
    """The default, and each knob turned alone."""
    turned = [replace(default, **{knob.field: value}) for knob in knobs for value in knob.values]
    return [default, *(setting for setting in turned if setting != default)]


def measure(name: str, rounds: int, steps: int, result: Path) -> None:
    """On each rank: tunes, then lets all settings take turns; rank 0 writes the figures to `result`."""
    import keras
    import tensorflow as tf

    import tfdist
    from tfdist.autotune.tuner import DONE, WATCH
    from tfdist.callbacks.autotune import Autotune
    from tfdist.native.knobs import offered

    model, x, y = build(name)
    callback = tfdist.callbacks.DataParallel(scale_learning_rate=False)
    tuner: Autotune = next(part for part in callback._parts() if isinstance(part, Autotune))

    def stop_when_found(batch: int, logs: Any) -> None:
        model.stop_training = tuner._order is not None and tuner._order.phase in (WATCH, DONE)

    stop = keras.callbacks.LambdaCallback(on_train_batch_end=stop_when_found)
    data = tfdist.shard(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.fit(data, steps_per_epoch=MOST_STEPS, epochs=1, verbose=0, callbacks=[callback, stop])
    found = tuner._order.setting
    settings = fixed_settings(tuner._default, offered(tuner._world(), tuner._default))
    if found not in settings:
        settings.append(found)
    times: dict[Any, list[float]] = {setting: [] for setting in settings}
    batches = iter(data)
    for turn in range(rounds):
        begin = turn % len(settings)
        for setting in settings[begin:] + settings[:begin]:
            tuner._apply(setting)
            seconds = []
            for _ in range(WARMUP_STEPS + steps):
                start = perf_counter()
                model.train_function(batches)
                seconds.append(perf_counter() - start)
            median = tf.constant(statistics.median(seconds[WARMUP_STEPS:]), tf.float64)
            times[setting].append(float(tfdist.allreduce(median, op=tfdist.Max, name="step")))
    if tfdist.rank() == 0:
        rows = [
            {**asdict(setting), "rounds_ms": [1e3 * seconds for seconds in taken], "found": setting == found}
            for setting, taken in times.items()
        ]
        result.write_text(json.dumps(rows))


def show(name: str, rows: Sequence[dict[str, Any]]) -> None:
    half = len(rows[0]["rounds_ms"]) // 2
    best = min(rows, key=lambda row: statistics.median(row["rounds_ms"][:half]))
    found = next(row for row in rows if row["found"])

    def ratio(other: dict[str, Any]) -> float:
        pairs = zip(found["rounds_ms"][half:], other["rounds_ms"][half:], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    of_best, of_default = ratio(best), ratio(rows[0])
    print(f"\n{name}: what was found takes {of_best:.3f} of the best of the sweep, {of_default:.3f} of the default")
    for row in rows:
        row["step_ms"] = statistics.median(row["rounds_ms"])
    default = rows[0]["step_ms"]
    print(f"{'fusion KiB':>10} {'chunk KiB':>9} {'wire':>5} {'thread':>6} {'step ms':>8} {'of default':>10}")
    for row in sorted(rows, key=lambda row: float(row["step_ms"])):
        mark = " found" * row["found"] + " default" * (row is rows[0]) + " best" * (row is best)
        sizes = f"{row['fusion_threshold'] / 1024:>10g} {row['chunk'] / 1024:>9g}"
        words = f"{row['compression']:>5} {'on' if row['thread'] else 'off':>6}"
        print(f"{sizes} {words} {row['step_ms']:>8.2f} {row['step_ms'] / default:>10.3f}{mark}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default=",".join(MODELS), help="of mlp, cnn, resnet50; default: all")
    parser.add_argument("--rounds", type=int, default=14, help="turns of each setting")
    parser.add_argument("--steps", type=int, help="steps of a sample, and of a turn; default: 100, 50 and 10")
    parser.add_argument("--samples", type=int, default=20, help="settings that are tried")
    parser.add_argument("--lossy", action="store_true", help="16 bits may be found")
    parser.add_argument("--on-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models {unknown[0]}: expected some of {', '.join(MODELS)}")
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: expected 2 or more; the best is chosen by half of them")
    if options.on_rank is not None:
        return measure(names[0], options.rounds, options.steps, options.on_rank)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            steps = str(options.steps or MODELS[name])
            variables = {
                "TFDIST_AUTOTUNE": "lossy" if options.lossy else "1",
                "TFDIST_AUTOTUNE_STEPS": steps,
                "TFDIST_AUTOTUNE_SAMPLES": str(options.samples),
            }
            result = Path(folder, f"{name}.json")
            rank = [sys.executable, __file__, "--models", name, "--rounds", str(options.rounds)]
            rank += ["--steps", steps, "--on-rank", str(result)]
            command = [sys.executable, "-m", "tfdist.launch", "-np", str(options.ranks), *rank]
            subprocess.run(command, env=os.environ | variables, timeout=DEADLINE_S, check=True)
            show(name, json.loads(result.read_text()))
    return None


if __name__ == "__main__":
    main()
