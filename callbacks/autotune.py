"""Measures settings of the collectives while `fit` trains, and applies what the tuner decides."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import config, errors
from tfdist.autotune import record
from tfdist.autotune.search import COMPARED, Verdict
from tfdist.autotune.tuner import COMPARE, DONE, EXPLORE, WATCH, Order, Tuner
from tfdist.callbacks.fit.model_hook import ModelHook, need_equal_batches
from tfdist.native import keras_version
from tfdist.native.knobs import Setting, World, offered, settings
from tfdist.ops.compression import Compression
from tfdist.ops.graph import call, order
from tfdist.training import model_optimizer, optimizer
from tfdist.training.gradients import in_buckets
from tfdist.training.local_variable import without
from tfdist.world import tuning
from tfdist.world.session import session

# How many times longer the samples of a kept setting are, since each one costs a collective.
WATCHED_SAMPLES = 10
# Uncounted steps before a sample: the first traces the new function, and the next may still compile.
_STEPS_OF_TRACE = 2

_Answer = TypeVar("_Answer")


def need_equal_settings() -> None:
    """Checks that all ranks tune with the same settings, or none does; every rank calls it.

    Raises:
        ConfigError: On every rank, if they differ; names the ranks and their values.
    """
    mine = config.read()
    fields = ("autotune", "autotune_samples", "autotune_steps")
    numbers = [config.AUTOTUNES.index(mine.autotune), mine.autotune_samples, mine.autotune_steps]
    by_rank = tfdist.allgather(np.array([numbers], np.int64), name="settings of autotuning").numpy()
    for field, column in zip(fields, by_rank.T, strict=True):
        other = next((rank for rank, value in enumerate(column) if value != column[0]), None)
        if other is not None:
            first, second = ((config.AUTOTUNES[v] if field == "autotune" else v) for v in (column[0], column[other]))
            name = config.variable(field)
            raise errors.ConfigError(
                f"{name} is {first} on rank 0 and {second} on rank {other}; expected the same everywhere. Set it for "
                f"all ranks: {name}=... tfdistrun -np {tfdist.size()} ..."
            )


class Autotune(keras.callbacks.Callback):
    """Searches for the setting with the shortest step during training; `DataParallel` runs it if tuning is enabled.

    All ranks switch settings between the same two steps. A sample is the median step time of the slowest rank; steps
    that trace are not counted. Rank 0 decides what to try next, and its errors are raised on every rank.

    Raises:
        ConfigError: If a setting is invalid, or the ranks may have unequal numbers of batches.
    """

    _differs_by_rank = True

    def __init__(self) -> None:
        super().__init__()
        self._settings = config.read()
        self._tuner: Tuner | None = None  # on rank 0
        self._log: record.Log | None = None
        self._order: Order | None = None
        self._default: Setting | None = None
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._function: Any = None  # the one in place
        self._applied: Setting | None = None  # what it runs with
        self._samples = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        name = config.variable("autotune")
        need_equal_batches(self.model, f"{name}={self._settings.autotune}", f"{name}=0")
        self._hook = ModelHook.of(self.model)
        self._stepped = self._running = False
        self._uncounted = 1
        self._start_sample()
        session.settings_tuned = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._last: float | None = None
        self._cycle: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._running and self._order is not None and self._order.phase == DONE:
            return
        if self._hook.skips(batch):
            return
        if not self._running:
            if self._stepped:  # so the model is built
                self._running = True
                self._begin()
            self._stepped = True
            return
        now = perf_counter()
        if self._last is not None:
            self._count(now - self._last)
        if len(self._times) >= self._steps_of_sample():
            self._end_sample()
            now = perf_counter()
        self._last = now

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._running or self._order is None or self._default is None:
            return
        if self._order.phase in (EXPLORE, COMPARE):
            self._apply(self._default)
            most = self._settings.autotune_samples + COMPARED
            self._say(
                f"autotune: training ended before the search, after {self._samples} of at most {most} samples of "
                f"{self._settings.autotune_steps} steps; the default is kept. Train for more steps, or lower "
                f"{config.variable('autotune_samples')} and {config.variable('autotune_steps')}; the next fit with "
                "the same callback continues the search."
            )

    def _start_sample(self) -> None:
        """Makes the next step the first of a sample."""
        self._times: list[float] = []
        self._cycle = []
        self._last = None

    def _count(self, seconds: float) -> None:
        """Counts one step; with gradient accumulation only every n-th step has an update and an all-reduce."""
        if self._uncounted:
            self._uncounted -= 1
            return
        self._cycle.append(seconds)
        if len(self._cycle) >= self._accumulated:
            self._times.append(sum(self._cycle) / len(self._cycle))
            self._cycle = []

    def _steps_of_sample(self) -> int:
        watched = self._order is not None and self._order.phase == WATCH
        return self._settings.autotune_steps * (WATCHED_SAMPLES if watched else 1)

    def _begin(self) -> None:
        """Called once per `fit`, at its second step."""
        inner = [keras_version.inner_optimizer(each) for each in model_optimizer.optimizers_of(self.model)]
        self._accumulated = max(each.gradient_accumulation_steps or 1 for each in inner)
        if self._order is None:
            self._default = self._default_setting()
            self._order = self._lead(self._make_tuner)
        # A model that was not recompiled in between still has the step function of the last fit.
        untouched = self._order.phase == DONE and self._order.setting == self._default
        foreign = self.model.train_function is not self._function
        if not untouched and (foreign or self._applied != self._order.setting):
            self._functions = {} if foreign else self._functions
            self._apply(self._order.setting)
        self._start_sample()

    def _default_setting(self) -> Setting:
        plain = tuning.of_settings(self._settings, tuning.most_chunk_bytes())
        compression = optimizer.reduction_of(self._first_optimizer()).compression
        name = compression.value if isinstance(compression, Compression) else "own"
        return Setting(plain.fusion_threshold, plain.chunk, name, plain.thread, plain.hierarchy)

    def _first_optimizer(self) -> keras.optimizers.Optimizer:
        return model_optimizer.optimizers_of(self.model)[0]

    def _make_tuner(self) -> Order:
        """Runs on rank 0."""
        assert self._default is not None
        job, world = self._job(), self._world()
        knobs = offered(world, self._default)
        start = None
        path = self._settings.autotune_result
        if path:
            start, misfit = record.load(path, job)
            if start is not None and start not in set(settings(self._default, knobs)):
                start, misfit = None, "its setting is not allowed here"
            if misfit:
                self._say(f"autotune: {path} does not match this job and will be replaced: {misfit}.")
        if not knobs:
            self._say("autotune: nothing to tune, because there is only one rank or every setting is fixed.")
        elif start is not None:
            what = "the default" if start == self._default else record.command(start, self._default, world.size)
            self._say(f"autotune: using the result in {path} without a search: {what}")
        if knobs and self._settings.autotune_log:
            self._log = record.Log(self._settings.autotune_log)

        def on_verdict(verdict: Verdict) -> None:
            self._say(record.report(verdict, world.size))
            if path:
                self._write(lambda: record.save(path, job, verdict.kept.setting))

        self._tuner = Tuner(self._default, knobs, self._settings.autotune_samples, start, on_verdict)
        return self._tuner.order

    def _variables(self) -> list[tf.Variable]:
        reduced = without(self.model.trainable_variables, model_optimizer.local_variables(self.model))
        return [variable.value for variable in reduced]

    def _job(self) -> record.Job:
        variables = self._variables()
        size = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
        return record.Job(tfdist.__version__, tfdist.size(), tfdist.cross_size(), len(variables), size)

    def _world(self) -> World:
        variables = self._variables()

        def plan(threshold: int) -> tuple[tuple[int, ...], ...]:
            return tuple(map(tuple, in_buckets(variables, threshold)))

        return World(
            size=tfdist.size(),
            hosts=tfdist.cross_size() if tfdist.is_homogeneous() else 1,
            on_gpu=order.collective_device().startswith("GPU"),
            compiled=bool(self.model.jit_compile) and not self.model.run_eagerly,
            most_chunk=tuning.most_chunk_bytes(),
            lossy=self._settings.autotune == "lossy",
            plan=plan if optimizer.reduction_of(self._first_optimizer()).grouping.by_threshold else None,
        )

    def _end_sample(self) -> None:
        assert self._order is not None
        steps = int(self.model.steps_per_execution)
        mine = tf.constant(statistics.median(self._times) / steps, tf.float64)
        slowest = float(tfdist.allreduce(mine, op=tfdist.Max, name="step time"))
        before = self._order
        self._order = self._lead(lambda: self._tell(slowest))
        self._samples += 1
        if self._order.setting != before.setting:
            self._apply(self._order.setting)
        if self._order.phase in (WATCH, DONE):
            self._functions = {}  # no longer needed; a new search makes its own
        self._start_sample()

    def _tell(self, seconds: float) -> Order:
        """Runs on rank 0."""
        assert self._tuner is not None
        order = self._tuner.order
        log = self._log
        if log is not None and not self._write(lambda: log.add(order.phase, order.setting, seconds)):
            self._log = None
        following = self._tuner.tell(seconds)
        if order.phase == WATCH and following.phase == EXPLORE:
            self._samples = -1  # this sample does not count for the search
            self._say("autotune: step times have changed; the search starts from scratch.")
        return following

    def _write(self, write: Callable[[], None]) -> bool:
        """Whether a file could be written: a full disk does not stop training."""
        try:
            write()
        except errors.ConfigError as error:
            self._say(f"autotune: training continues without the file: {error}")
            return False
        return True

    def _lead(self, decide: Callable[[], _Answer]) -> _Answer:
        """Returns on every rank what rank 0 decides; its error is raised on every rank."""
        answer: Any = None
        if tfdist.rank() == 0:
            try:
                answer = decide()
            except errors.TfdistError as error:
                answer = error
        answer = tfdist.broadcast_object(answer, 0, name="order of autotuning")
        if isinstance(answer, errors.TfdistError):
            raise answer
        return answer

    def _apply(self, setting: Setting) -> None:
        """Reconfigures the engine, optimizer and step between two steps, on every rank."""
        tuning.apply(tuning.Tuning(setting.fusion_threshold, setting.chunk, setting.hierarchy, setting.thread))
        if setting.compression != "own":
            for each in model_optimizer.optimizers_of(self.model):
                optimizer.set_compression(each, Compression.of(setting.compression))
        threshold = setting.fusion_threshold if call.overlaps() else None  # otherwise only the engine uses it
        traced = (threshold, setting.compression, setting.thread)
        self._uncounted = 1
        if traced not in self._functions:
            self._uncounted = _STEPS_OF_TRACE
            self.model.train_function = None
            self.model.make_train_function()
            self._functions[traced] = self.model.train_function
        self._function = self.model.train_function = self._functions[traced]
        self._applied = setting

    def _say(self, text: str) -> None:
        """Prints on rank 0: information for people, not a warning."""
        if tfdist.rank() == 0:
            sys.stderr.write(f"tfdist: {text}\n")
            sys.stderr.flush()
