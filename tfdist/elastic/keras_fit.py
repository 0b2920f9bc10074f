"""`model.fit` in an elastic job: restarted from the newest commit when a rank is lost. Not a callback.

Any failure in `fit`, in a step, a metric or a callback, raises out of it; only a new call from outside can continue. So
an elastic job wraps `keras.Model.fit`, for calls with a `DataParallel(elastic=True)` among their callbacks.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import elastic, errors
from tfdist.elastic import callback_state
from tfdist.elastic.fit_data import need_elastic_validation, part_of
from tfdist.input import mark, pipeline
from tfdist.input.global_part import GlobalPart
from tfdist.input.part import order_of, put_in_order
from tfdist.ops.graph import replica
from tfdist.ops.object import broadcast_object
from tfdist.protocol import member
from tfdist.training.model_build import build_optimizers, make_weights
from tfdist.world import runtime
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_NO_EPOCH = -1


def fit(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`keras.Model.fit` of an elastic job, around that of Keras."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments["callbacks"]
    callbacks = list(given) if isinstance(given, (list, tuple)) else [given]
    plugins = [callback for callback in callbacks if getattr(callback, "elastic", False)]
    for plugin in plugins:
        plugin.is_followed = True
    if plugins and any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in callbacks):
        raise errors.ConfigError(
            "keras.callbacks.BackupAndRestore sets weights and epoch of its own where DataParallel(elastic=True) "
            "continues from a commit. Use tfdist.callbacks.BackupAndRestore, or tfdistrun --backup-dir."
        )
    if not plugins or (runtime.size() == 1 and member.commits() is None):
        _set_length(bound.arguments)
        return original(*bound.args, **bound.kwargs)
    return _Fit(original, dict(bound.arguments), callbacks, plugins[0]).run()


class _Fit:
    """One call of `fit` by the script, as any number of Keras' calls."""

    def __init__(
        self, original: Callable[..., Any], arguments: dict[str, Any], callbacks: Sequence[Any], plugin: Any
    ) -> None:
        self._original = original
        self._model = arguments.pop("self")
        self._dataset = arguments.pop("x")
        self._epochs = arguments.pop("epochs")
        strategy = self._model.distribute_strategy
        if replica.is_wrapped(strategy):
            raise errors.ConfigError(
                "DataParallel(elastic=True) tracks the position in the data, which a tf.distribute strategy hides; "
                f"received a model under {type(strategy).__name__}. Remove the strategy: each rank is one replica."
            )
        steps = arguments.pop("steps_per_epoch")
        self._part, self._unit = part_of(self._dataset, steps)
        need_elastic_validation(arguments["validation_data"])
        called = session.collectives
        make_weights(self._model, self._dataset.element_spec)
        build_optimizers(self._model, self._dataset.element_spec)
        session.collectives = called  # they trace some, and run none
        # Keras would start another pass over the service in each fit, so it gets a stand-in dataset (in `_train`).
        self._stream = None if steps is None else iter(self._dataset)
        self._training = _Training(self._model, arguments.pop("initial_epoch"), plugin.batches_per_commit, self._stream)
        self._training.sums_metrics_by = plugin if isinstance(self._part, GlobalPart) else None
        self._training.epoch_elements = (steps or 0) * runtime.size()
        self._arguments = arguments
        plugin.data_of_fit = self._dataset
        self._plugin = plugin
        self._ranks: tuple[int, int] | None = None  # the number and this one, when a step was taken last
        self._callbacks = _Callbacks(self._training, plugin, callbacks, self._model, arguments["verbose"], self._epochs)

    def run(self) -> Any:
        if self._training.joins:
            self._rehearse()
        train = elastic.run(lambda _: self._train())
        train(self._training)
        if self._training.has_newcomers:  # they came after the last step
            self._callbacks.begin()
        if self._callbacks.begun:
            self._callbacks.end_training()
        else:  # earlier processes completed the training
            self._training.restore_history()
        return self._model.history

    def _rehearse(self) -> None:
        """Takes a step before this process joins others, which would wait while it is traced, and undoes it."""
        if self._part is None:
            return  # a data service would deal in vain
        history = self._model.history  # that of the training; Keras makes another one
        self._part.deal(0, self._unit)
        if isinstance(self._part, GlobalPart):
            self._part.narrow()
        steps = self._model.steps_per_execution
        first = mark.put(self._dataset.take(steps), *mark.of(self._dataset))
        given = {"x": first, "steps_per_epoch": steps, "callbacks": [self._plugin], "verbose": 0}
        given |= {"validation_data": None, "validation_split": 0.0}
        self._note_ranks()
        try:
            self._original(self._model, **{**self._arguments, **given}, initial_epoch=0, epochs=1)
        except Exception as error:  # noqa: BLE001  (the training itself may do better, or fails with the same)
            self._model.train_function = None
            _logger.warning("a step to prepare failed, so the other ranks wait while the first is traced: %s", error)
        finally:
            self._model.history = history
            self._training.restore()

    def _note_ranks(self) -> None:
        """What was compiled for other ranks is compiled again."""
        found = (runtime.size(), runtime.rank())
        if session.compiled_for_ranks and self._ranks not in (None, found):
            self._model.train_function = self._model.test_function = None
        self._ranks = found

    def _train(self) -> None:
        training = self._training
        while training.epoch < self._epochs and not training.stopped:
            round_size = runtime.size() if self._part is None else self._part.round_size(self._unit)
            if self._part is None:
                steps = (training.epoch_elements - training.position) // round_size
                stand_in = mark.put(tf.data.Dataset.from_tensors(0).repeat(), *mark.of(self._dataset))
                length: dict[str, Any] = {"x": stand_in, "steps_per_epoch": steps}
            else:
                steps = self._part.deal(training.position, self._unit)
                length = {"x": self._dataset.apply(tf.data.experimental.assert_cardinality(steps))}
            self._callbacks.resume_at(training.position // round_size, steps)
            training.deal(round_size, steps)
            # A resumed epoch has fewer steps than those after it.
            end = training.epoch + 1 if training.position else self._epochs
            self._note_ranks()
            try:
                self._original(
                    self._model,
                    **{**self._arguments, **length, "callbacks": self._callbacks},
                    initial_epoch=training.epoch,
                    epochs=end,
                )
            finally:
                if isinstance(self._model.train_function, _Steps):
                    self._model.train_function = self._model.train_function.train_function


def _set_length(arguments: dict[str, Any]) -> None:
    """Passes on the length, which a reshardable part does not report; it stays fixed in a fit that cannot continue."""
    dataset = arguments["x"]
    part, unit = pipeline.elastic_part_of(dataset) if isinstance(dataset, tf.data.Dataset) else (None, 0)
    if part is not None and arguments["steps_per_epoch"] is None:
        arguments["x"] = dataset.apply(tf.data.experimental.assert_cardinality(part.deal(0, unit)))


class _Training(elastic.KerasState):
    """The progress of training. Ranks differ only in the metrics of the epoch, which are local to each.

    `position` counts the elements of the epoch already trained on, `epoch_elements` those in an epoch of endless data:
    there the data is the iterator `stream`, which continues after what was lost and has no order to keep.

    `of_callbacks` is what the callbacks decide by.

    With a global batch the metrics of all ranks are part of each commit, `metric_sums`, so that those of the epoch do
    not depend on which ranks are left: `sums_metrics_by` can sum them.
    """

    epoch: int
    position: int
    epoch_elements: int
    order: bytes
    ordered_epoch: int
    stopped: bool
    history: dict[str, Any]
    metric_sums: list[Any]
    of_callbacks: callback_state.Kept
    sums_metrics_by: Any = None

    def __init__(self, model: keras.Model, epoch: int, batches_per_commit: int, stream: Any) -> None:
        self._model = model
        self._batches_per_commit = batches_per_commit
        self._stream = self._iterator = stream
        # Whether the others have begun this training before.
        self.joins = session.apart >= 0
        self._entered = self._begins = self._lacks_metrics = self._is_requested = False
        self.callbacks: Sequence[Any] = ()
        super().__init__(
            model,
            epoch=epoch,
            position=0,
            epoch_elements=0,
            order=b"",
            ordered_epoch=_NO_EPOCH,
            stopped=False,
            history={"epoch": [], "history": {}},
            metric_sums=[],
            of_callbacks=callback_state.Kept({}),
        )

    def deal(self, round_size: int, steps: int) -> None:
        """A `fit` of Keras begins, with this many steps per epoch and elements of all ranks per step."""
        self._round_size, self._steps = round_size, steps
        self._entered = True

    def begin_epoch(self) -> None:
        """The next step is the first of an epoch, or of the rest of one."""
        self._begins = True

    def begin_step(self, iterator: Any) -> Any:
        """Returns the iterator to draw from, in the order of the epoch on all ranks, taken from the newest commit."""
        if not self._begins:
            return self._iterator
        self._begins, self._step = False, 0
        entered, self._entered = self._entered, False
        self._lacks_metrics = entered and bool(self.metric_sums)
        if entered and self.position and self.sums_metrics_by is None:
            for variable, value in self._kept_metrics:
                variable.assign(value)
        if self._stream is None:
            self._iterator = self._in_order(iterator) if entered else iterator
            if self.ordered_epoch != self.epoch:
                self.order = tf.io.serialize_tensor(order_of(self._iterator)).numpy()
                self.ordered_epoch = self.epoch
        return self._iterator

    def end_steps(self) -> None:
        """One execution of Keras has taken its steps, or fewer if the data has ended."""
        taken = self._model.steps_per_execution
        if self._stream is None:
            taken = min(taken, self._steps - self._step)
        before, self._step = self._step, self._step + taken
        self.position += self._round_size * taken
        # After its last step the epoch ends immediately, and its end is a better place to continue from.
        if self._lacks_metrics:  # which Keras may have made in this step only
            self.sums_metrics_by.add_metrics(self.metric_sums)
            self._lacks_metrics = False
        is_due = self._step // self._batches_per_commit > before // self._batches_per_commit
        if is_due and self._step < self._steps:
            if self.sums_metrics_by is not None:
                self.metric_sums = self.sums_metrics_by.sum_metrics()
            self.save()
            self._is_requested = self._has_request()

    def end_batch(self) -> None:
        """The callbacks know of the step: if it was asked to at the commit, this process leaves or meets others now."""
        if self._is_requested:
            self._is_requested = False
            self.of_callbacks = callback_state.capture(self.callbacks)
            self.check_host_updates()

    def end_epoch(self) -> None:
        self.epoch, self.position, self.stopped = self.epoch + 1, 0, bool(self._model.stop_training)
        self.metric_sums = []
        self.history = {"epoch": self._model.history.epoch, "history": self._model.history.history}
        self.commit()

    def save(self) -> None:
        self.of_callbacks = callback_state.capture(self.callbacks)
        super().save()

    @property
    def resumed(self) -> bool:
        """Whether this process began from a commit, its own or one that others had; the same on ranks that start
        together.
        """
        return self._resumed

    def restore_history(self) -> None:
        """Restores the history of the epochs that earlier processes completed."""
        self._model.history.epoch = list(self.history["epoch"])
        self._model.history.history = dict(self.history["history"])

    def _in_order(self, iterator: Any) -> Any:
        order = self.order
        if self.ordered_epoch == _NO_EPOCH:
            own = tf.io.serialize_tensor(order_of(iterator)).numpy()
            order = broadcast_object(own, 0, name="order of the data")
        put_in_order(iterator, tf.io.parse_tensor(order, tf.variant))
        if self.ordered_epoch in (_NO_EPOCH, self.epoch):
            return iterator
        # The order is that of the previous epoch, and new iterators continue from it. One is discarded, because
        # Keras makes an unused one after each epoch.
        iter(iterator._dataset)
        return iter(iterator._dataset)

    def _keep(self) -> None:
        # Kept in memory only: restarted processes have no metric variables yet, and count from zero.
        kept = [(variable, np.array(variable)) for variable in self._model.metrics_variables]
        super()._keep()
        self._kept_metrics = kept


class _Steps:
    """Stands in for a train function: draws from the iterator that the training chooses, and commits."""

    def __init__(self, train_function: Callable[[Any], Any], training: _Training) -> None:
        self.train_function = train_function
        self._training = training

    def __call__(self, iterator: Any) -> Any:
        logs = self.train_function(self._training.begin_step(iterator))
        self._training.end_steps()
        return logs


class _Callbacks(keras.callbacks.CallbackList):
    """The callbacks, for which all calls of Keras' `fit` look like one.

    Attributes:
        begun: Whether a call has begun.
    """

    def __init__(
        self, training: _Training, plugin: Any, callbacks: Sequence[Any], model: keras.Model, verbose: Any, epochs: int
    ) -> None:
        self._training = training
        self._plugin = plugin
        self.begun = False
        self._offset = 0
        self._last_logs: Any = None
        training.callbacks = [*callbacks, *plugin._parts()]
        super().__init__(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=None,  # set by resume_at
        )

    def resume_at(self, step: int, steps: int) -> None:
        """The next epoch resumes after `step` steps, and has `steps` more."""
        self._offset = step
        self.set_params({**self.params, "steps": step + steps})

    def on_train_begin(self, logs: Any = None) -> None:
        self.begin()
        self._model.train_function = _Steps(self._model.train_function, self._training)

    def begin(self) -> None:
        """The ranks that there are now begin the training, or continue it."""
        training, is_first = self._training, not self.begun
        if is_first:
            session.catches_up, session.takes_over = training.joins, training.joins or training.resumed
            try:
                super().on_train_begin()
            finally:
                session.catches_up = session.takes_over = False
            if training.joins:
                training._keep()  # with a random state of its own, also if a rank is lost before the next commit
        callback_state.restore(training.callbacks, training.of_callbacks)
        if not is_first or training.resumed or training.has_newcomers:
            self._plugin.resume(training.has_newcomers)
        if is_first:
            training.restore_history()
        self.begun, training.has_newcomers = True, False

    def on_train_end(self, logs: Any = None) -> None:
        self._last_logs = logs

    def end_training(self) -> None:
        super().on_train_end(self._last_logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._training.begin_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._offset = 0
        self._training.end_epoch()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch + self._offset, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch + self._offset, logs)
        self._training.end_batch()
