"""Times the steps of `model.fit` on synthetic images, on all ranks and in a single process.

The single process is rank 0 with a second, plain model without tfdist, so that binding, threads and memory are the
same. It runs its steps in turn with all ranks, round by round, while the others sleep in a barrier. Their CPU use there
is measured too, and reported if it was not negligible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import DataParallel
from tfdist.command.bench.measure import machine, rank, record, statistic, table
from tfdist.command.bench.measure.progress import Progress
from tfdist.command.bench.measure.request import Record, Train
from tfdist.command.bench.train import network
from tfdist.errors import ConfigError
from tfdist.ops.graph import xla
from tfdist.world import runtime

CLASSES = 1000
# Small, so that no network diverges on random labels: computing with non-finite numbers may be slower.
RATE = 1e-4
# Each fit creates an iterator and starts callbacks around its first step, so that step is not timed.
_STEPS_OF_START = 1
# Fraction of a core above which waiting ranks are reported to have disturbed the single process.
_NEGLIGIBLE = 0.1

HEAD = "run,steps,median ms,least ms,images/s a rank,images/s in all,communication ms".split(",")


class StepTimer(keras.callbacks.Callback):
    """Records the seconds of each step, and how many of them were spent in collectives.

    Put it last in the list, so that the work of other callbacks at the start of a batch is not counted.

    Example:

    ```python
    timer = StepTimer()
    model.fit(dataset, steps_per_epoch=10, callbacks=[tfdist.callbacks.DataParallel(), timer])
    print(timer.seconds)
    ```
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.communication: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._communication = runtime.communication_seconds()
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds.append(time.perf_counter() - self._start)
        self.communication.append(runtime.communication_seconds() - self._communication)


class Training:
    """One model with its data; `callbacks` distribute it, or are empty."""

    def __init__(self, options: Train, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = callbacks
        self._dataset = _images(options)
        self.model = build(options)
        self.model.compile(
            keras.optimizers.SGD(RATE, momentum=0.9),
            loss="sparse_categorical_crossentropy",
            jit_compile=True if options.jit_compile else "auto",
        )
        self.rounds: list[list[float]] = []
        self.communication: list[list[float]] = []

    def take(self, steps: int) -> StepTimer:
        """One fit; times all but its first step."""
        timer = StepTimer()
        history = self.model.fit(
            self._dataset,
            steps_per_epoch=_STEPS_OF_START + steps,
            verbose=0,
            shuffle=False,
            callbacks=[*self._callbacks, timer],
        )
        if not math.isfinite(history.history["loss"][-1]):
            raise ConfigError("the loss is not finite, so the step times are not representative; choose another model")
        del timer.seconds[:_STEPS_OF_START], timer.communication[:_STEPS_OF_START]
        return timer

    def take_round(self, steps: int) -> None:
        """One fit, with its times recorded."""
        timer = self.take(steps)
        self.rounds.append(timer.seconds)
        self.communication.append(timer.communication)


def run(options: Train) -> None:
    """Measures, prints the table on rank 0, and writes the requested files."""
    rank.start(options.threads, options.inter_op_threads)
    if options.plain and tfdist.size() > 1:
        raise ConfigError(
            f"--plain is for a single process, but was run on {tfdist.size()} ranks. Run it without a launcher."
        )
    size = f"{options.image_size}x{options.image_size}"
    wire = "without tfdist" if options.plain else f"compression {options.compression}"
    what = f"{options.model}, {size}, batch {options.batch_size}, {wire}, {_threads(options)}"
    rank.introduce(what, "train")
    alone, together, waiting = _measure(options)
    rows = [_row(f"{tfdist.size()} rank{'s' * (tfdist.size() != 1)}", together, options, tfdist.size())]
    if alone is not None:
        rows.append(_row("1 process alone", alone, options, 1))
    if tfdist.rank() != 0:
        return
    print(table.aligned(HEAD, [_cells(row) for row in rows]))
    print(f"± : 95 % confidence interval of the mean of {options.rounds} rounds, t(0.975, n-1) s / sqrt(n)")
    efficiency = _efficiency(rows) if len(rows) > 1 else None
    if efficiency is not None:
        median, least = (f"{100 * efficiency[name]:.1f} %" for name in ("of_medians", "of_minima"))
        print(f"efficiency: {median} (step alone / step of {tfdist.size()} ranks, medians), {least} (least times)")
    if waiting > _NEGLIGIBLE:
        print(f"note: during the single-process steps, a waiting rank used {100 * waiting:.0f} % of a core")
    if options.csv is not None:
        record.write_csv(options.csv, rows)
    if options.json is not None:
        document = {"benchmark": "train", "machine": machine.describe(), "options": options, "rows": rows}
        record.write_json(options.json, document | {"efficiency": efficiency, "waiting_core_share": waiting})


def build(options: Train | Record) -> keras.Model:
    """The network with random weights, the same on every rank."""
    keras.utils.set_random_seed(0)
    shape = (options.image_size, options.image_size, 3)
    if options.model == network.DIGITS:
        layers = keras.layers
        return keras.Sequential(
            [
                layers.Input(shape),
                layers.Conv2D(16, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(CLASSES, activation="softmax"),
            ]
        )
    make = getattr(keras.applications, options.model)
    return make(weights=None, input_shape=shape, classes=CLASSES)


def _images(options: Train) -> tf.data.Dataset:
    """One batch, repeated, because reading data is not timed. Each rank has its own."""
    numbers = np.random.default_rng(tfdist.rank())
    images = numbers.random((options.batch_size, options.image_size, options.image_size, 3), np.float32)
    labels = numbers.integers(0, CLASSES, options.batch_size)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def _measure(options: Train) -> tuple[Training | None, Training, float]:
    """Times of the single process (on rank 0, if requested) and of all ranks, and the CPU use of a waiting rank."""
    distribute = [DataParallel(compression=options.compression, scale_learning_rate=False)]
    together = Training(options, [] if options.plain else distribute)
    alone = Training(options, []) if options.compare_single and tfdist.rank() == 0 else None
    rank.say(f"tracing and {options.warmup} steps of warm-up ...")
    if alone is not None:
        alone.take(options.warmup)
    tfdist.barrier()
    together.take(options.warmup)
    _check_compiled(options, together)
    progress = Progress(f"{options.model}, rounds", options.rounds, shown=tfdist.rank() == 0)
    waited = worked = 0.0
    for number in range(options.rounds):
        if options.compare_single:
            start, processor = time.perf_counter(), time.process_time()
            if alone is not None:
                alone.take_round(options.steps)
            tfdist.barrier()
            waited += time.perf_counter() - start
            worked += time.process_time() - processor
        together.take_round(options.steps)
        progress.done(number + 1)
    shares = tfdist.allgather_object(worked / waited if waited else 0.0, name="bench.waiting")
    return alone, together, max(shares[1:], default=0.0)


def _threads(options: Train) -> str:
    if options.threads == 0:
        return "TensorFlow's own choice of threads"
    return f"{options.threads} thread{'s' * (options.threads != 1)} a rank"


def _check_compiled(options: Train, training: Training) -> None:
    if options.jit_compile and not training.model.jit_compile:
        raise ConfigError(f"--jit-compile: {xla.obstacle() or 'the callback disabled it; its warning says why'}")


def _row(name: str, training: Training, options: Train, ranks: int) -> dict[str, Any]:
    """One line of results. A step on several ranks counts with their mean, since they wait for each other."""
    steps = [step for part in training.rounds for step in part]
    communication = [step for part in training.communication for step in part]
    if ranks > 1:
        steps = rank.mean_over_ranks(steps, "bench.steps")
        communication = rank.mean_over_ranks(communication, "bench.communication")
    rounds = [sum(steps[start : start + options.steps]) for start in range(0, len(steps), options.steps)]
    rate = statistic.confidence_interval([ranks * options.batch_size * options.steps / seconds for seconds in rounds])
    return {
        "run": name,
        "ranks": ranks,
        "steps": len(steps),
        "median_ms": statistic.median(steps) * 1e3,
        "min_ms": min(steps) * 1e3,
        "images_per_second_rank": rate.mean / ranks,
        "images_per_second": rate.mean,
        "images_per_second_half_width": rate.half_width,
        "communication_ms": sum(communication) / len(communication) * 1e3,
    }


def _efficiency(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Step time of a single process divided by that of all ranks: 1 if communication and sharing cost nothing."""
    together, alone = rows
    return {
        "of_medians": alone["median_ms"] / together["median_ms"],
        "of_minima": alone["min_ms"] / together["min_ms"],
    }


def _cells(row: dict[str, Any]) -> list[str]:
    total, width = row["images_per_second"], row["images_per_second_half_width"]
    numbers = [f"{row[name]:.1f}" for name in ("median_ms", "min_ms")]
    a_rank = statistic.Interval(total / row["ranks"], None if width is None else width / row["ranks"])
    in_all = statistic.Interval(total, width)
    return [row["run"], str(row["steps"]), *numbers, str(a_rank), str(in_all), f"{row['communication_ms']:.2f}"]
