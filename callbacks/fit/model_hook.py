"""What the callbacks change on a model instance, once and together. Not a callback.

`fit` traces `train_step`, evaluates through `evaluate`, and reads metrics through `_get_metrics_result_or_logs`; these
are replaced on the instance. The hooks stay for the life of the model: those in the traced step are harmless where
nobody reads them, and those that run eagerly act only between the begin and end of a `fit` or `evaluate` that one of
our callbacks is part of.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import metric_reduction
from tfdist.callbacks.fit.data_digest import digest
from tfdist.callbacks.fit.drift import Drift
from tfdist.callbacks.fit.epoch_end import EpochEnd
from tfdist.callbacks.fit.step_function import translate_errors
from tfdist.input import shuffle_warning
from tfdist.native import keras_version
from tfdist.ops.graph.sequence import Section
from tfdist.training import adapted_state, model_optimizer
from tfdist.training.gradients import weighted_by
from tfdist.training.local_variable import key_of
from tfdist.training.model_build import Building
from tfdist.training.sync_batch_norm import synchronized, synchronized_statistics
from tfdist.world import runtime


class ModelHook:
    """The changes to one model, and what the changed methods count.

    Attributes:
        reduces_metrics: Whether `fit` and `evaluate` report metrics over all ranks.
        averages_statistics: Whether non-trainable weights are averaged at the end of each training epoch.
        joins: Whether the ranks may have unequal numbers of batches: they count by their samples in each step, and wait
            for each other at the end of each training epoch.
        synchronizes_moments: Whether Keras' `BatchNormalization(synchronized=True)` in a training step is over all
            ranks. Read when the step is traced.
        wrapped_optimizers: The optimizers that `DataParallel` made distributed.
        drift: Looks whether the ranks still have the same weights.
        epoch_end: Where the ranks meet at the end of a training epoch; to be told when one begins.
        resume_batch: In the epoch that training resumes in, the first batch that is trained on again.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._building = Building(model)
        self._train_step: Callable[[Any], Any] = model.train_step
        self._test_step: Callable[[Any], Any] = model.test_step
        self._evaluate: Callable[..., Any] = model.evaluate
        self._read_metrics = keras_version.metrics_reader(model)
        self._phases: list[str] = []
        self._history: Any = None
        self._local = 0
        self.reduces_metrics = False
        self.averages_statistics = False
        self.joins = False
        self.synchronizes_moments = False
        self.resume_batch = 0
        self.wrapped_optimizers: list[Any] = []
        self.drift = Drift(model)
        self._digest = tf.Variable(0.0, trainable=False, dtype=tf.float32)
        self._train_samples = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._test_samples = tf.Variable(0, trainable=False, dtype=tf.int64)
        model.train_step = self._hooked_train_step
        model.test_step = self._hooked_test_step
        model.evaluate = self._hooked_evaluate
        self.epoch_end = EpochEnd()
        translate_errors(model)
        keras_version.set_metrics_reader(model, self._hooked_read_metrics)

    @classmethod
    def of(cls, model: keras.Model) -> ModelHook:
        """The hook of this model, installed now if it has none.

        Raises:
            NotInitializedError: Before `tfdist.init()`.
        """
        tfdist.rank()
        shuffle_warning.show()
        installed = getattr(model.train_step, "__self__", None)
        return installed if isinstance(installed, cls) else cls(model)

    def begin(self, phase: str) -> None:
        """A `fit` ("train") or `evaluate` ("test") that has our callbacks begins."""
        if phase == "train":
            self._phases.clear()  # an earlier fit may have ended by an exception
            self._history = self._model.history
        if not self._phases or self._phases[-1] != phase:
            self._phases.append(phase)
            (self._train_samples if phase == "train" else self._test_samples).assign(0)

    def end(self, phase: str) -> None:
        """The `fit` or `evaluate` ends."""
        if self._phases and self._phases[-1] == phase:
            self._phases.pop()

    def when_built(self, action: Callable[[], None], alone: bool = False) -> None:
        """Does something now, or before the first step where Keras has yet to make weights; every rank must ask.

        Args:
            action: What to do.
            alone: Whether a world of one needs it too.
        """
        if alone or tfdist.size() > 1:
            self._building.then(action)

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        """Nothing inside reduces metrics: for code that runs on one rank."""
        self._local += 1
        try:
            yield
        finally:
            self._local -= 1

    def skips(self, batch: int) -> bool:
        """Whether this batch was trained on before training was interrupted, so that it is only drawn now."""
        return batch < self.resume_batch

    def samples_seen(self) -> int:
        """Samples this rank has trained on since the `fit` began."""
        return int(self._train_samples.numpy())

    def ranks_see_same_data(self) -> bool:
        """Whether the latest batch was the same on all ranks; every rank must ask."""
        digests = tfdist.allgather(tf.reshape(self._digest, [1]), name="digest of the first batch").numpy()
        return len(digests) > 1 and bool(np.all(digests == digests[0]))

    def _hooked_train_step(self, data: Any) -> Any:
        samples = _samples(data)
        weight = samples if self.joins else None
        section = Section()
        # Around each step or trace, and not from the begin of a fit to its end: an exception leaves nothing behind, and
        # in a later fit a step that was traced and one that runs eagerly do the same, as they do with the optimizer.
        with weighted_by(weight), synchronized(self._model) if self.synchronizes_moments else contextlib.nullcontext():
            logs = self._train_step(data)
        # Where the iterator has come to its end, nothing is counted: what is counted may be known without the data.
        with tf.control_dependencies(tf.nest.flatten(data, expand_composites=True)[:1]):
            self._train_samples.assign_add(samples)
            self.epoch_end.count()
        self._digest.assign(digest(data, compiled=bool(self._model.jit_compile)))
        if isinstance(logs, dict) and "loss" in logs:
            # So a loss that is not finite on one rank is seen on all, and TerminateOnNaN stops them together.
            self.epoch_end.in_lockstep = True
            with section.done():
                (loss,) = tfdist.grouped_allreduce([logs["loss"]], op=tfdist.Average, name="loss", weight=weight)
            logs = {**logs, "loss": loss}
        return logs

    def _hooked_test_step(self, data: Any) -> Any:
        logs = self._test_step(data)
        self._test_samples.assign_add(_samples(data))
        return logs

    def _hooked_evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """An `evaluate` is of all ranks only if `begin` is called within: the one of `fit`, or with our callbacks."""
        before = list(self._phases)
        self._phases.append("alone")
        try:
            return self._evaluate(*args, **kwargs)
        finally:
            self._phases[:] = before

    def _hooked_read_metrics(self, logs: Any) -> Any:
        """What `fit` and `evaluate` take as the logs of the epoch."""
        phase = self._phases[-1] if self._phases else "alone"
        # Keras makes a history for each fit: with another one this is a later fit, which our callbacks are not part of.
        if phase == "train" and self._history is not self._model.history:
            phase = "alone"
        if self._local or phase == "alone":
            return self._read_metrics(logs)
        if phase == "train" and self.joins:
            join(self._model)
        elif phase == "train" and (self.averages_statistics or self.reduces_metrics):
            self.epoch_end.meet()
        if phase == "train" and self.averages_statistics:
            average_statistics(self._model)
        if not self.reduces_metrics:
            return self._read_metrics(logs)
        samples = self._train_samples if phase == "train" else self._test_samples
        return metric_reduction.reduce_logs(self._model, logs, int(samples.numpy()))


def join(model: keras.Model) -> None:
    """Waits until every rank has trained on its last batch; those that had fewer take over the state of the last."""
    last = tfdist.join()
    steps = tf.stack([tf.cast(count, tf.int64) for count in model_optimizer.iterations_of(model)])
    if len(np.unique(tfdist.allgather(steps[None], name="steps of each rank").numpy(), axis=0)) > 1:
        # While each rank still has its own; those of synchronized layers are complete on the last rank alone.
        average_statistics(model, keep=synchronized_statistics(model))
        broadcast_state(model, root_rank=last)


def need_equal_batches(what: str) -> None:
    """Refuses what every rank must do after the same batch, where ranks may have unequal numbers of them.

    Raises:
        ConfigError: If the data was sharded with `remainder="join"`.
    """
    if runtime.happened(runtime.JOINED):
        raise errors.ConfigError(
            f'{what} needs equally many batches on every rank, and data was sharded with remainder="join" in this '
            'process. Save at the end of epochs (save_freq="epoch"), or shard with remainder="drop", also what you '
            "validate on."
        )


def statistics_of_rank(model: keras.Model, keep: Sequence[Any] = ()) -> list[Any]:
    """The floating non-trainable weights, such as moving means, that differ between ranks; every rank must ask.

    Frozen weights do not differ. They are left out for their size, and because the mean of three equal numbers need
    not be that number. Those of local layers are their rank's own.
    """
    local = {key_of(variable) for variable in (*model_optimizer.local_variables(model), *keep)}
    floating = [v for v in model.non_trainable_weights if v.dtype.startswith(("float", "bfloat"))]
    candidates = [v for v in floating if key_of(v) not in local]
    if not candidates or tfdist.size() == 1:
        return []
    checksums = np.array([[zlib.crc32(np.asarray(v.value).tobytes()) for v in candidates]], np.int64)
    by_rank = tfdist.allgather(checksums, name="checksums of statistics").numpy()
    return [v for v, column in zip(candidates, by_rank.T, strict=True) if len(set(column)) > 1]


def average_statistics(model: keras.Model, keep: Sequence[Any] = ()) -> None:
    """Averages the weights that training changes other than by gradients, such as moving means, but not `keep`."""
    statistics = statistics_of_rank(model, keep)
    if not statistics:
        return
    values = [tf.convert_to_tensor(variable.value) for variable in statistics]
    for variable, value in zip(
        statistics, tfdist.grouped_allreduce(values, op=tfdist.Average, name="statistics"), strict=True
    ):
        variable.assign(value)
    adapted_state.follow_variables(model)


def begin_equal(model: keras.Model, root_rank: int, keep: Sequence[Any] = ()) -> None:
    """`broadcast_state` at the beginning of a `fit`, after a look at what a broadcast does not reach.

    Raises:
        ConfigError: As `broadcast_state` does.
        MismatchError: If a preprocessing layer has learned something else on each rank.
    """
    adapted_state.require_equal_before_broadcast(model, model_optimizer.local_layers(model))
    broadcast_state(model, root_rank, keep)


def broadcast_state(model: keras.Model, root_rank: int, keep: Sequence[Any] = ()) -> None:
    """Gives every rank the weights and optimizer state of one rank. What is a rank's own stays: seeds
    of random layers, gradients that are still being accumulated, and local variables with their slots.

    Args:
        model: A built model.
        root_rank: The rank whose state everybody gets.
        keep: Variables that stay as they are on each rank.

    Raises:
        ConfigError: If the model has no weights.
    """
    if not model.weights:
        raise errors.ConfigError(
            f"model {model.name!r} has no weights, also after its first step was traced, so there is nothing that "
            "ranks could train together. Make variables by add_weight or in layers that are attributes of the model."
        )
    model_optimizer.build_compiled(model)
    if len(model_optimizer.optimizers_of(model)) > 1:
        # Keras builds the others in the first step that uses them, which not every rank may have taken.
        layout = tfdist.broadcast_object(model_optimizer.layout_of(model), root_rank, name="what optimizers update")
        model_optimizer.build_as(model, layout)
    variables = [*model.weights, *model_optimizer.variables_of(model)]
    local = model_optimizer.state_of_rank(model, keep)
    kept = {id(part) for variable in local for part in (variable, getattr(variable, "value", variable))}
    shared = [v for v in variables if id(v) not in kept and id(v.value) not in kept]
    tfdist.broadcast_variables(shared, root_rank, name="weights and optimizer state")
    adapted_state.follow_variables(model)


def _samples(data: Any) -> tf.Tensor:
    first = tf.nest.flatten(data)[0]
    if isinstance(first, np.ndarray):  # of train_on_batch, in a step that is not compiled
        first = tf.convert_to_tensor(first)
    return tf.cast(tf.shape(first)[0] if first.shape.rank else 1, tf.int64)
