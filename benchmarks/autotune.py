"""Measures what autotuning finds beside fixed settings, or records the step times of all settings for its tests.

    python benchmarks/autotune.py [--models mlp,cnn,resnet50] [--ranks N] [--rounds N] [--steps N] [--lossy]
    python benchmarks/autotune.py --record tests/unit/autotune/recording.json [--minutes N] [--models ...]

Each model is tuned once, with real times. Then the default, each knob turned alone to each of its values, and the
setting that was found take steps in turn in one job, in rounds that begin with another setting each. A figure is the
median over rounds of the slowest rank's median step. The best of the sweep is chosen by the first half of the rounds,
and compared with what was found in the second: the best of many by the same figures would be the luckiest.

With `--record`, nothing is searched: VGG16, ResNet50 and MobileNetV2 take steps with every setting that could be tried,
in rounds, so that slow changes of the machine reach all settings alike; every other round runs backwards. What a rank
traces once is used in all rounds. A sample is the median of `--steps` steps on the slowest rank. A model ends after
`--rounds`, or where another round would take more than its part of `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

# Steps of a sample, so that it lasts a quarter of a second or more.
MODELS = {"mlp": 100, "cnn": 50, "resnet50": 10}
# Pixels, and steps of a sample. The model with short steps comes first, and leaves its time to the others.
RECORDED = {"MobileNetV2": (96, 4), "VGG16": (64, 1), "ResNet50": (96, 1)}
RECORDED_ROUNDS = 6
# To start the ranks and to build a model.
MINUTES_OF_START = 0.4
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
    elif name in RECORDED:
        shape = (RECORDED[name][0], RECORDED[name][0], 3)
        model = getattr(keras.applications, name)(
            weights=None, input_shape=shape, classes=1000, classifier_activation=None
        )
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


def start_tuner(name: str, ends: Sequence[str]) -> tuple[Any, Iterator[Any]]:
    """On each rank: trains a model until its tuner is in one of the phases; the tuner, and batches to train on."""
    import keras
    import tensorflow as tf

    import tfdist
    from tfdist.callbacks.autotune import Autotune

    model, x, y = build(name)
    callback = tfdist.callbacks.DataParallel(scale_learning_rate=False)
    tuner: Autotune = next(part for part in callback._parts() if isinstance(part, Autotune))

    def stop_in_phase(batch: int, logs: Any) -> None:
        model.stop_training = tuner._order is not None and tuner._order.phase in ends

    stop = keras.callbacks.LambdaCallback(on_train_batch_end=stop_in_phase)
    data = tfdist.shard(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.fit(data, steps_per_epoch=MOST_STEPS, epochs=1, verbose=0, callbacks=[callback, stop])
    return tuner, iter(data)


def sample(tuner: Any, setting: Any, batches: Iterator[Any], untimed: int, steps: int) -> float:
    """On each rank: the median step in seconds with a setting, on the slowest rank."""
    import tensorflow as tf

    import tfdist

    tuner._apply(setting)
    seconds = []
    for _ in range(untimed + steps):
        start = perf_counter()
        tuner.model.train_function(batches)
        seconds.append(perf_counter() - start)
    median = tf.constant(statistics.median(seconds[untimed:]), tf.float64)
    return float(tfdist.allreduce(median, op=tfdist.Max, name="step"))


def record(name: str, rounds: int, steps: int, deadline_s: float, result: Path) -> None:
    """On each rank: samples of every setting, in rounds that end `deadline_s` seconds after the start at the latest."""
    import tfdist
    from tfdist.autotune.tuner import EXPLORE
    from tfdist.native.knobs import offered, settings

    begin = perf_counter()
    tuner, batches = start_tuner(name, [EXPLORE])
    knobs = offered(tuner._world(), tuner._default)
    # Chunks change fastest, for they need no other trace.
    grid = sorted(settings(tuner._default, knobs), key=lambda each: (_trace(each), each.chunk))
    for trace in dict.fromkeys(map(_trace, grid)):
        sample(tuner, next(each for each in grid if _trace(each) == trace), batches, 0, 1)
    times: dict[Any, list[float]] = {setting: [] for setting in grid}
    _show_progress(name, f"traced {len(set(map(_trace, grid)))} steps for {len(grid)} settings", begin)
    for number in range(rounds):
        start = perf_counter()
        before = None
        for setting in grid if number % 2 == 0 else reversed(grid):
            untimed = int(_trace(setting) != before)
            times[setting].append(sample(tuner, setting, batches, untimed, steps))
            before = _trace(setting)
        _show_progress(name, f"round {number + 1} of at most {rounds}", begin)
        another = 2 * perf_counter() - start - begin <= deadline_s
        if not tfdist.broadcast_object(another, 0, name="another round"):
            break
    if tfdist.rank() == 0:
        rows = [[*asdict(setting).values(), [round(1e6 * each) for each in taken]] for setting, taken in times.items()]
        default = list(asdict(tuner._default).values())
        knob_rows = [list(vars(knob).values()) for knob in knobs]
        result.write_text(json.dumps({"steps": steps, "knobs": knob_rows, "default": default, "us": rows}))


def _trace(setting: Any) -> tuple[Any, ...]:
    """What a step is traced for: settings that differ in the chunk alone share one."""
    return (setting.thread, setting.compression, setting.hierarchy, setting.fusion_threshold)


def _show_progress(name: str, what: str, begin: float) -> None:
    import tfdist

    if tfdist.rank() == 0:
        print(f"{name}: {what}, {perf_counter() - begin:.0f} s", flush=True)


def measure(name: str, rounds: int, steps: int, result: Path) -> None:
    """On each rank: tunes, then lets all settings take turns; rank 0 writes the figures to `result`."""
    import tfdist
    from tfdist.autotune.tuner import DONE, WATCH
    from tfdist.native.knobs import offered

    tuner, batches = start_tuner(name, [WATCH, DONE])
    found = tuner._order.setting
    settings = fixed_settings(tuner._default, offered(tuner._world(), tuner._default))
    if found not in settings:
        settings.append(found)
    times: dict[Any, list[float]] = {setting: [] for setting in settings}
    for turn in range(rounds):
        begin = turn % len(settings)
        for setting in settings[begin:] + settings[:begin]:
            times[setting].append(sample(tuner, setting, batches, WARMUP_STEPS, steps))
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


def write_recording(path: Path, ranks: int, models: dict[str, Any]) -> None:
    """As JSON with a setting a line."""
    from tfdist.command.bench.measure import machine

    head = {"machine": machine.describe(), "date": str(date.today()), "ranks": ranks}
    parts = []
    for name, model in models.items():
        rows = ",\n".join(f"    {json.dumps(row)}" for row in model["us"])
        fields = "".join(f"   {json.dumps(key)}: {json.dumps(model[key])},\n" for key in model if key != "us")
        parts.append(f'  {json.dumps(name)}: {{\n{fields}   "us": [\n{rows}\n   ]\n  }}')
    text = json.dumps(head, indent=1)[:-2] + ',\n "models": {\n' + ",\n".join(parts) + "\n }\n}\n"
    path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", help=f"default: {','.join(MODELS)}; to record, {','.join(RECORDED)}")
    parser.add_argument("--rounds", type=int, help=f"turns of each setting; default: 14; to record, {RECORDED_ROUNDS}")
    parser.add_argument("--steps", type=int, help="steps of a sample, and of a turn; default: by model")
    parser.add_argument("--samples", type=int, default=20, help="settings that are tried")
    parser.add_argument("--lossy", action="store_true", help="16 bits may be found")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record samples of all settings")
    parser.add_argument("--minutes", type=float, default=12, help="for the record in all")
    parser.add_argument("--on-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known = RECORDED if options.record else MODELS
    names = options.models.split(",") if options.models else list(known)
    options.rounds = options.rounds or (RECORDED_ROUNDS if options.record else 14)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--models {unknown[0]}: expected some of {', '.join(known)}")
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: expected 2 or more; the best is chosen by half of them")
    if options.on_rank is None:
        return lead(names, options)
    if options.record:
        return record(names[0], options.rounds, options.steps, 60 * options.minutes, options.on_rank)
    return measure(names[0], options.rounds, options.steps, options.on_rank)


def lead(names: Sequence[str], options: argparse.Namespace) -> None:
    """Starts a job for each model, and shows or writes what it measured."""
    recorded = {}
    begin = perf_counter()
    for number, name in enumerate(names):
        left = options.minutes - (perf_counter() - begin) / 60
        minutes = left / (len(names) - number) - MINUTES_OF_START
        steps = options.steps or (RECORDED[name][1] if options.record else MODELS[name])
        document = run_ranks(name, steps, minutes, options)
        if not options.record:
            show(name, document)
            continue
        recorded[name] = document
        write_recording(options.record, options.ranks, recorded)


def run_ranks(name: str, steps: int, minutes: float, options: argparse.Namespace) -> Any:
    """What the ranks of a job measured."""
    variables = {
        "TFDIST_AUTOTUNE": "lossy" if options.lossy else "1",
        "TFDIST_AUTOTUNE_STEPS": str(steps),
        "TFDIST_AUTOTUNE_SAMPLES": str(options.samples),
    }
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        rank = [sys.executable, __file__, "--models", name, "--rounds", str(options.rounds), "--steps", str(steps)]
        rank += ["--on-rank", str(result)]
        rank += ["--record", str(options.record), "--minutes", str(minutes)] if options.record else []
        command = [sys.executable, "-m", "tfdist.launch", "-np", str(options.ranks), *rank]
        subprocess.run(command, env=os.environ | variables, timeout=DEADLINE_S, check=True)
        return json.loads(result.read_text())


if __name__ == "__main__":
    main()
