"""What the callbacks change on a model instance, once and together. Not a callback.

`fit` traces `train_step`, evaluates through `evaluate`, and reads metrics through `_get_metrics_result_or_logs`; these
are replaced on the instance. The hooks stay for the life of the model: those in the traced step are harmless if nothing
reads them, and those that run eagerly act only during a `fit` or `evaluate` with a tfdist callback.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import metric_reduction, micro_batch, training_data
from tfdist.callbacks.fit.data_digest import digest
from tfdist.callbacks.fit.drift import Drift
from tfdist.callbacks.fit.epoch_end import EpochEnd
from tfdist.callbacks.fit.step_function import release_iterators, translate_errors
from tfdist.input import shuffle_warning
from tfdist.native import keras_version
from tfdist.ops.graph.sequence import Section
from tfdist.training import adapted_state, model_optimizer, model_state
from tfdist.training.gradients import weighted_by
from tfdist.training.model_build import Building
from tfdist.training.sync_batch_norm import synchronized, synchronized_statistics
from tfdist.world.session import session

_NAMED = 3
_STRANGERS = (
    "%s: the ranks have different values there, which are averaged after each epoch, as is right for moving means. If "
    "it is something else, such as a queue of samples, let each rank keep its own: compile the model with optimizer = "
    "tfdist.DistributedOptimizer(optimizer), and call optimizer.register_local_var(variable)."
)
_logger = logging.getLogger("tfdist")


class ModelHook:
    """The changes to one model, and what the changed methods count.

    Attributes:
        reduces_metrics: Whether `fit` and `evaluate` report metrics over all ranks.
        averages_statistics: Whether non-trainable weights are averaged at the end of each training epoch.
        joins: Whether the ranks may have unequal numbers of batches, so that they wait for each other at the end of
            each training epoch.
        weighs: Whether each step weights the ranks by their samples. Read when the step is traced.
        synchronizes_moments: Whether Keras' `BatchNormalization(synchronized=True)` normalises over all ranks in a
            training step. Read when the step is traced.
        wrapped_optimizers: The optimizers that `DataParallel` made distributed.
        drift: Checks that the ranks still have the same weights.
        epoch_end: Where the ranks meet at the end of a training epoch; must be notified when one begins.
        reduced_names: Of the logs of `fit` that are of all ranks.
        resume_batch: The first batch to train on in the epoch where training resumes.
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
        self.reduced_names: set[str] = set()
        self.averages_statistics = False
        self.joins = self.weighs = False
        self.synchronizes_moments = False
        self.resume_batch = 0
        self._told_of_strangers = False
        self.wrapped_optimizers: list[Any] = []
        self.drift = Drift(model)
        self._splits = False  # read when the step is traced; the limit, when it runs
        self._max_samples = tf.Variable(micro_batch.UNLIMITED, trainable=False, dtype=tf.int64)
        self._split_data: list[Any] = []
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
            ConfigError: If the model is not one of Keras 3.
        """
        tfdist.rank()
        if not isinstance(model, keras.Model):
            raise errors.ConfigError(
                f"callbacks of tfdist are for models of Keras 3; received {type(model)}. Unset TF_USE_LEGACY_KERAS "
                "if it is set: tf.keras is then Keras 3."
            )
        shuffle_warning.show()
        installed = getattr(model.train_step, "__self__", None)
        return installed if isinstance(installed, cls) else cls(model)

    def begin(self, phase: str) -> None:
        """A `fit` ("train") or `evaluate` ("test") with tfdist callbacks begins."""
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
        if phase == "train":
            release_iterators(self._model, "train_function")
            self._end_splitting()

    def when_built(self, action: Callable[[], None], alone: bool = False) -> None:
        """Runs an action now, or just before the first step if Keras has yet to make weights; every rank must call it.

        Args:
            action: The action.
            alone: Whether to run it in a world of one too.
        """
        if (alone or tfdist.size() > 1) and not session.catches_up:
            self._building.then(action)

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        """Metrics are not reduced inside: for code that runs on one rank."""
        self._local += 1
        try:
            yield
        finally:
            self._local -= 1

    def skips(self, batch: int) -> bool:
        """Whether this batch was trained on before the interruption, so that it is drawn and skipped."""
        return batch < self.resume_batch

    def split_large_batches(self) -> None:
        """The steps of the running `fit` take large batches in parts if its data asks for it.

        A step that was traced differently is traced again; for another limit, or number of ranks, it is not.

        Raises:
            ConfigError: If its steps cannot be taken in parts.
        """
        own_step = getattr(self._train_step, "__func__", None) is not keras.Model.train_step
        micro_batch.need_parts(self._model, own_step)
        limit = training_data.max_local_batch(self._model)
        if (limit is not None) != self._splits:
            self._splits = limit is not None
            adapted_state.drop_traces(self._model)
        self._end_splitting()  # of an earlier fit, which may have ended by an exception
        if limit is not None:
            self._max_samples.assign(limit)
            self._split_data = training_data.global_parts(self._model)
            for part in self._split_data:
                part.split(True)

    def _end_splitting(self) -> None:
        """A step outside `fit` takes its batch at once."""
        self._max_samples.assign(micro_batch.UNLIMITED)
        while self._split_data:
            self._split_data.pop().split(False)

    def samples_seen(self) -> int:
        """Samples this rank has trained on since the `fit` began."""
        return int(self._train_samples.numpy())

    def digest_of_latest(self) -> float:
        """The digest of the batch that this rank has trained on last."""
        return float(self._digest.numpy())

    def ranks_see_same_data(self) -> bool:
        """Whether the latest batch was the same on all ranks; every rank must call it."""
        digests = tfdist.allgather(tf.reshape(self._digest, [1]), name="digest of the first batch").numpy()
        return len(digests) > 1 and bool(np.all(digests == digests[0]))

    def _hooked_train_step(self, data: Any) -> Any:
        samples = _samples(data)
        weight = samples if self.weighs else None
        section = Section()
        # Around each step or trace, and not from the begin of a fit to its end: an exception leaves nothing behind, and
        # in a later fit a step that was traced and one that runs eagerly do the same, as they do with the optimizer.
        moments = synchronized(self._model) if self.synchronizes_moments else contextlib.nullcontext()
        with weighted_by(weight), moments, self._weighing_losses(samples):
            if self._splits:
                parts = micro_batch.MicroBatches(data, samples, self._max_samples.read_value())
                logs = micro_batch.take_step(self._model, self._train_step, parts)
            else:
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

    def _weighing_losses(self, samples: Any) -> contextlib.AbstractContextManager[None]:
        """Where a step has several losses, ranks count in their means as they do in their sum."""
        if not self.weighs or self._splits:  # parts of a batch are weighed one by one
            return contextlib.nullcontext()
        return keras_version.weighing_losses(self._model, tf.cast(samples, tf.float32))

    def _hooked_test_step(self, data: Any) -> Any:
        logs = self._test_step(data)
        self._test_samples.assign_add(_samples(data))
        return logs

    def _hooked_evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """An `evaluate` covers all ranks only if `begin` is called inside: validation in `fit`, or with tfdist
        callbacks.
        """
        before = list(self._phases)
        self._phases.append("alone")
        try:
            return self._evaluate(*args, **kwargs)
        finally:
            self._phases[:] = before
            release_iterators(self._model, "test_function")

    def _hooked_read_metrics(self, logs: Any) -> Any:
        """What `fit` and `evaluate` use as the logs of the epoch."""
        phase = self._phases[-1] if self._phases else "alone"
        # Keras makes a history for each fit: with another one this is a later fit, which our callbacks are not part of.
        if phase == "train" and self._history is not self._model.history:
            phase = "alone"
        if self._local or phase == "alone":
            return self._read_metrics(logs)
        if phase == "train":
            self._meet()
        if not self.reduces_metrics:
            return self._read_metrics(logs)
        samples = self._train_samples if phase == "train" else self._test_samples
        alike = phase == "train" and not self.weighs
        reduced = metric_reduction.reduce_logs(
            self._model, logs, int(samples.numpy()), warn_if_unequal=alike, may_repeat=phase == "test"
        )
        self.reduced_names |= {f"val_{name}" if phase == "test" else name for name in reduced}
        return reduced

    def _meet(self) -> None:
        """Meets the other ranks at the end of a training epoch."""
        strangers: list[str] = []
        if self.joins:
            strangers = join(self._model, self.epoch_end.batches())
        elif self.averages_statistics or self.reduces_metrics:
            self.epoch_end.meet()
        if self.averages_statistics:
            strangers += model_state.average_statistics(self._model)
        if strangers and not self._told_of_strangers and tfdist.rank() == 0:
            self._told_of_strangers = True
            _logger.warning(_STRANGERS, ", ".join(strangers[:_NAMED]))


def join(model: keras.Model, batches: int) -> list[str]:
    """Waits until every rank has trained on its last batch; ranks with fewer batches get the state of the last one.

    Args:
        model: A model that has taken steps.
        batches: How many batches this rank had in the epoch. A step that a loss scale skips counts no update.

    Returns:
        What `average_statistics` returns.
    """
    last = tfdist.join()
    steps = tf.stack([tf.cast(count, tf.int64) for count in (batches, *model_optimizer.iterations_of(model))])
    if len(np.unique(tfdist.allgather(steps[None], name="steps of each rank").numpy(), axis=0)) == 1:
        return []
    # While each rank still has its own; those of synchronized layers are complete on the last rank alone.
    strangers = model_state.average_statistics(model, keep=synchronized_statistics(model))
    model_state.broadcast(model, root_rank=last)
    model_state.set_rates(model, tfdist.broadcast_object(model_state.rates_of(model), last, name="rates of the last"))
    return strangers


def need_equal_batches(model: keras.Model, what: str, instead: str) -> None:
    """Rejects what all ranks must do after the same batch, if their numbers of batches may differ.

    Raises:
        ConfigError: If what the running `fit` trains on was sharded with `remainder="join"`.
    """
    if training_data.is_uneven(model):
        raise errors.ConfigError(
            f"{what} needs the same number of batches on every rank, but this fit trains on data sharded with "
            f'remainder="join". Set {instead}, or shard with remainder="drop" or "pad".'
        )


def _samples(data: Any) -> tf.Tensor:
    first = tf.nest.flatten(data)[0]
    if isinstance(first, np.ndarray):  # of train_on_batch, in a step that is not compiled
        first = tf.convert_to_tensor(first)
    return tf.cast(tf.shape(first)[0] if first.shape.rank else 1, tf.int64)
