"""Resumes interrupted training at the batch where it stopped."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import metric_reduction, training_data
from tfdist.callbacks.fit.data_digest import digest
from tfdist.callbacks.fit.model_hook import ModelHook, need_equal_batches
from tfdist.callbacks.store import snapshot, writer
from tfdist.callbacks.store.failure_series import FailureSeries
from tfdist.callbacks.store.snapshot import Position
from tfdist.callbacks.store.writer import Writer
from tfdist.native import keras_version
from tfdist.ops.digest import digest_of
from tfdist.training import model_optimizer, model_state, random_state
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_OTHER_ORDER = (
    "the data does not come in the order of before the interruption, so in this epoch some samples are trained on "
    "twice and others not at all. Make the order the same in each epoch, as with shuffle(..., seed=1, "
    'reshuffle_each_iteration=False), or of arrays fit(..., shuffle=False); or use save_freq="epoch".'
)
# Of digests, which are sums: they are taken in a traced step and outside.
_RELATIVE_ERROR = 1e-4


class BackupAndRestore(keras.callbacks.Callback):
    """Backs up the training state to files, and resumes all ranks at the same epoch and batch.

    You need it if a job may be killed: start the same script again, and `fit` continues from the newest backup. Rank 0
    writes weights, optimizer state and position, and the random state and metrics of every rank. A file is written
    completely or not at all, and verified when read; the newest intact one is used. A different number of ranks can
    resume only from the start of an epoch: a learning rate scaled by the number of ranks is then scaled for the new
    number, and random numbers differ from all that were drawn before.

    At the end of an epoch the state is that after all callbacks, wherever this one is in the list: it is copied when
    its turn comes, in case the job is killed in those after it, and again if they have changed it, such as the rate.
    Put `SwapEMAWeights` after it, whose averages are in the place of the weights until the next epoch begins.

    Training waits for a copy in memory, not for the disk: rank 0 writes it in a background thread. If a write takes
    longer than the time between two backups, the next one waits, and is replaced by the one after it, so rank 0 holds
    at most two copies. `fit` waits for pending writes at its end, and so does the interpreter when it exits, even after
    an exception. A file that cannot be written, for example on a full disk, does not stop training: rank 0 logs an
    error with the cause, tries again at the next backup, and reports the newest complete one at the end.

    To resume in the middle of an epoch, batches already trained on are read and dropped, so the dataset must yield the
    same order again: `shuffle(..., seed=1, reshuffle_each_iteration=False)`. Without the latter a new process starts
    with the order of the first epoch, and in later epochs drops the wrong samples, of which rank 0 warns; arrays that
    Keras shuffles come in another order too, if there is no global seed. `save_freq="epoch"` drops nothing. Of data
    sharded with `global_batch`, and followed only by map and prefetch, no batch is read to be dropped: only what comes
    before the last maps given to `tfdist.shard`, such as row numbers. That needs a known length, of which
    `steps_per_execution` divides the steps. Callbacks with state of their own, such as `EarlyStopping`, start from
    scratch.

    Args:
        backup_dir: Folder for the files, accessible to rank 0, or an address in an object store, such as
            `s3://bucket/run`. Use a separate folder for each training.
        save_freq: "epoch", or the number of batches between two files.
        double_checkpoint: Whether to keep the previous file besides the newest.
        delete_checkpoint: Whether to remove the backups when `fit` ends, and the folder if nothing else is in it.

    Raises:
        ConfigError: If an argument is invalid.
        TfdistError: On every rank, before the first step, if rank 0 cannot read what is there, or cannot create or
            write the folder or the store for any reason but a full disk; names the place and the cause. At the end, if
            the backup was of a model that has no weights yet, and no step has made them.

    Example:

    ```python
    model.fit(dataset, epochs=90, callbacks=[DataParallel(), BackupAndRestore("backup", save_freq=1000)])
    ```
    """

    # All ranks save at the same times.
    elastic_attributes = ("_saved_at", "_is_followed")

    def __init__(
        self,
        backup_dir: str | Path,
        save_freq: str | int = "epoch",
        double_checkpoint: bool = True,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        if save_freq != "epoch" and not (isinstance(save_freq, int) and save_freq > 0):
            raise errors.ConfigError(f'save_freq must be "epoch" or a number of batches; received {save_freq!r}.')
        if not str(backup_dir):
            raise errors.ConfigError("backup_dir must be a folder; received an empty path.")
        self._shelf = snapshot.open_shelf(backup_dir, "backup_dir")
        self._place = str(self._shelf)
        self._save_freq = save_freq
        self._keep = 2 if double_checkpoint else 1
        self._delete = delete_checkpoint
        self._writer = Writer(f"backups to {backup_dir}")
        self._failures = FailureSeries("backups")
        self._leaves_out = False
        self._waits = False
        self._last = _AfterOthers(self)
        self._others: list[Any] = []
        self._is_followed = False
        self._digests: dict[str, int] = {}
        self._arrays: dict[str, Any] = {}
        self._epoch = 0
        self._saved_at = 0
        # The number of a batch of this epoch, and its digest.
        self._known: tuple[int, float] | None = None

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._save_freq != "epoch":
            need_equal_batches(self.model, f"BackupAndRestore(save_freq={self._save_freq})", 'save_freq="epoch"')
        self._hook.resume_batch = self._saved_at = 0
        training_data.start_at(self.model, 0)  # an earlier fit may have ended in the epoch where it resumed
        keras_version.set_initial_epoch(self.model, 0)
        if isinstance(self.model.train_function, _Resumption):  # an earlier fit ended while dropping batches
            self.model.train_function = self.model.train_function.train_function
        self._leaves_out = self._waits = False
        self._known = None
        self._others = keras_version.call_last(self._last)
        self._failures.begin()
        loaded, failure = (None, None) if session.takes_over else self._load()  # a commit is newer than any backup
        if failure:
            self._failures.end()
            raise errors.TfdistError(failure)
        if loaded is None:
            return
        position, local = loaded
        keras_version.set_initial_epoch(self.model, position.epoch)
        model_state.set_rates(self.model, local)
        rates = model_state.rates_of(self.model)
        self._hook.resume_batch = self._saved_at = position.batch
        if position.batch:
            # Keras reads past the end of the data in the last steps of an epoch that it takes at once.
            ends_evenly = not (self.params.get("steps") or 1) % self.model.steps_per_execution
            starts_there = ends_evenly and training_data.start_at(self.model, position.batch)
            if starts_there and position.epoch and training_data.reshuffles(self.model) and not tfdist.rank():
                _logger.warning(_OTHER_ORDER)
            if "known/batch" in local:
                self._known = int(local["known/batch"]), float(local["known/digest"])
            self.model.train_function = _Resumption(
                self.model,
                position.batch,
                not starts_there,
                self._compare,
                lambda: model_state.restore_of_rank(self.model, local),
                lambda: self._add_metrics(local),
            )
        self._waits = True
        self._hook.when_built(lambda: self._restore(position, local, rates), alone=True)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._save_freq == "epoch" or self._hook.skips(batch):
            return
        if self._known is None:
            self._known = batch, self._hook.digest_of_latest()
        if batch + 1 >= (self.params.get("steps") or float("inf")):
            return  # the epoch ends immediately after this, and is a better place to resume at
        if batch + 1 - self._saved_at >= int(self._save_freq):
            self._saved_at = batch + 1
            self._save(Position(self._epoch, batch + 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._hook.resume_batch:
            training_data.start_at(self.model, 0)
        self._hook.resume_batch = self._saved_at = 0
        self._known = None
        self._save(Position(epoch + 1, 0))

    def _end_epoch(self, epoch: int) -> None:
        """All callbacks know that the epoch has ended."""
        if self._is_followed and not any(keras_version.has_averages_in_weights(each) for each in self._others):
            self._save(Position(epoch + 1, 0), again=True)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # A later fit of this model starts at its own first epoch.
        keras_version.set_initial_epoch(self.model, 0)
        if self._waits:
            self._failures.end()
            raise errors.TfdistError(
                f"no step was trained, and the model has no weights yet, so those in {self._place} were not taken "
                "over. Build the model before fit, as by calling it with a batch."
            )
        if self._delete:
            self._writer.drop()
        self._writer.wait()
        self._failures.end()
        # So that all ranks find the files after `fit`.
        tfdist.barrier(name="training has ended")
        if self._delete and tfdist.rank() == 0:
            self._clear()

    def _clear(self) -> None:
        try:
            self._shelf.clear()
        except OSError as error:
            _logger.warning("training has ended, but its backups could not be removed: %s", error)

    def _save(self, position: Position, again: bool = False) -> None:
        by_rank = tfdist.allgather_object(self._local_state(position), name="state of every rank")
        if tfdist.rank() != 0:
            return
        arrays = {f"local/{rank}/{name}": v for rank, state in enumerate(by_rank) for name, v in state.items()}
        arrays |= model_state.capture(self.model)
        arrays["ranks"] = np.array(tfdist.size())
        if self._is_followed:
            digests = {name: digest_of(np.asarray(array)) for name, array in arrays.items()}
            if again and digests == self._digests:
                return
            self._digests = digests
        if self._writer.put(lambda: self._write(position, arrays)) and not again and not self._leaves_out:
            self._leaves_out = True
            _logger.warning(
                "a backup before that of %s is skipped, because writing one to %s takes longer than the time between "
                "backups (save_freq=%s). The newest is always written.",
                *(position, self._place, self._save_freq),
            )

    def _write(self, position: Position, arrays: dict[str, Any]) -> None:
        """Runs in the writer's thread."""
        try:
            snapshot.write(self._shelf, position, arrays, self._keep)
        except Exception as error:  # noqa: BLE001  (training continues, whatever the error)
            size = sum(np.asarray(array).nbytes for array in arrays.values())
            self._failures.failed(f"backup of {position}", error, self._place, size)
        else:
            self._failures.succeeded(f"backup of {position}")

    def _load(self) -> tuple[tuple[Position, dict[str, Any]] | None, str | None]:
        """Rank 0 reads a file; returns the position and state of this rank, or what went wrong."""
        message: tuple[Position | None, list[dict[str, Any]], str | None] = (None, [], None)
        if tfdist.rank() == 0:
            doing = "write a backup to"
            try:
                writer.wait_for_all()  # an interrupted fit may have writes pending
                self._shelf.check()
                doing = "resume from"
                message = self._read()
            except Exception as error:  # noqa: BLE001  (the other ranks wait to hear of it, whatever it is)
                message = (None, [], f"rank 0 could not {doing} {self._place}: {error}")
        # Rank 0 may have callbacks that the others lack, and a rank alone cannot save.
        followed = bool(self._others) and self._others[-1] is not self
        message, self._is_followed = tfdist.broadcast_object((message, followed), 0, name="position to resume at")
        position, by_rank, failure = message
        if position is None:
            return None, failure
        return (position, by_rank[tfdist.rank()] if by_rank else {}), None

    def _read(self) -> tuple[Position | None, list[dict[str, Any]], str | None]:
        found = snapshot.newest_valid(self._shelf)
        if found is None:
            return None, [], None
        position, arrays, skipped = found
        for line in skipped:
            _logger.warning("%s", line)
        ranks = int(arrays["ranks"])
        if ranks != tfdist.size() and position.batch:
            raise ValueError(
                f"it was written in the middle of an epoch by {ranks} ranks, but this job has {tfdist.size()}, which "
                f"changes how the data is sharded. Start {ranks} ranks, or remove the folder."
            )
        if ranks != tfdist.size() and model_optimizer.has_local_variables(self.model):
            raise ValueError(
                f"it was written by {ranks} ranks, each with its own local variables, but this job has "
                f"{tfdist.size()}. Start {ranks} ranks, or remove the folder."
            )
        steps = self.params.get("steps")
        if steps and position.batch >= steps:
            raise ValueError(
                f"it was written after batch {position.batch} of an epoch, but an epoch now has {steps}. Use the "
                "same data, or remove the folder."
            )
        self._arrays = arrays
        self._failures.newest = f"backup of {position}"
        _logger.warning("resuming at epoch %d, batch %d from %s", position.epoch, position.batch, self._place)
        epochs = self.params.get("epochs")
        if epochs is not None and position.epoch >= epochs:
            _logger.warning(
                "that is the end of the %d epochs that fit was asked for, so nothing is left to train. If that is not "
                "meant, ask for more epochs, or remove the folder.",
                epochs,
            )
        if ranks != tfdist.size():
            return position, [], None
        return position, [model_state.below(arrays, f"local/{rank}/") for rank in range(ranks)], None

    def _restore(self, position: Position, local: dict[str, Any], rates: dict[str, Any]) -> None:
        """Restores what was read, once the model has weights, which may be only in its first step."""
        self._waits = False
        in_force = model_state.rates_of(self.model)
        failure = tfdist.broadcast_object(self._take_over(), 0, name="backup is taken over")
        if failure:
            keras_version.set_initial_epoch(self.model, 0)
            self._failures.end()
            raise errors.TfdistError(failure)
        model_state.broadcast(self.model, root_rank=0)
        if local or in_force != rates:  # other callbacks may have set the rate since
            model_state.set_rates(self.model, in_force)
        if not position.batch:
            model_state.restore_of_rank(self.model, local)
        if not local:  # another number of ranks
            random_state.fold_again(self.model, position.epoch)

    def _take_over(self) -> str | None:
        """Acts on rank 0; returns what went wrong."""
        arrays, self._arrays = self._arrays, {}
        if tfdist.rank() != 0:
            return None
        try:
            model_state.restore(self.model, arrays)
        except Exception as error:  # noqa: BLE001  (the other ranks wait to hear of it, whatever it is)
            return f"rank 0 could not resume from {self._place}: {error}"
        return None

    def _local_state(self, position: Position) -> dict[str, Any]:
        """The state that differs by rank, including metrics in the middle of an epoch. Every rank must call it."""
        state = model_state.capture_of_rank(self.model, in_epoch=position.batch > 0)
        if position.batch:
            if self._known is not None:
                state |= {"known/batch": np.array(self._known[0]), "known/digest": np.array(self._known[1])}
            state |= {
                f"metric/{index}": variable.numpy()
                for index, variable in enumerate(metric_reduction.additive_states(self.model))
            }
        return state

    def _compare(self, number: int, batch: Any) -> None:
        """Warns if a batch that is dropped is not the one that was trained on."""
        if tfdist.rank() or self._known is None or self._known[0] != number:
            return
        found, known = float(digest(batch, bool(self.model.jit_compile))), self._known[1]
        if abs(found - known) > _RELATIVE_ERROR * max(abs(found), abs(known)):  # no NaN, of which nothing is known
            _logger.warning(_OTHER_ORDER)

    def _add_metrics(self, state: dict[str, Any]) -> None:
        """Adds the counts from before the interruption, after the first step: Keras creates the metrics in it."""
        for index, variable in enumerate(metric_reduction.additive_states(self.model)):
            if f"metric/{index}" in state:
                variable.assign_add(state[f"metric/{index}"])


class _AfterOthers(keras.callbacks.Callback):
    """The last in the list: lets a `BackupAndRestore` see what those after it have done."""

    _differs_by_rank = True  # it comes with the other, which is compared

    def __init__(self, backup: BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._backup._end_epoch(epoch)


class _Resumption:
    """Replaces the train function: reads the first batches without training on them, so batch numbers stay right.

    Args:
        model: The model being trained.
        batches: How many batches to read.
        draws: Whether to draw them from the iterator, which otherwise starts after them.
        each: Called with the number of each one that is drawn, and the batch.
        drawn: Called after the last of them.
        trained: Called after the first step.
    """

    def __init__(
        self,
        model: keras.Model,
        batches: int,
        draws: bool,
        each: Callable[[int, Any], None],
        drawn: Callable[[], None],
        trained: Callable[[], None],
    ) -> None:
        self.train_function = model.train_function
        self._model = model
        self._fit = model.history  # Keras creates a history for each fit
        self._batches = self._left = batches
        self._draws = draws
        self._each = each
        self._drawn = drawn
        self._trained = trained

    def __call__(self, iterator: Iterator[Any]) -> Any:
        if self._model.history is not self._fit:  # the fit it was made for ended early
            return self.train_function(iterator)
        if not self._left:
            self._model.train_function = self.train_function
            try:
                return self.train_function(iterator)
            finally:
                self._trained()
        wanted = min(self._model.steps_per_execution, self._left)
        # The last execution of an epoch may have fewer steps.
        if self._draws and not self._draw(iterator, wanted):
            raise errors.TfdistError(
                f"the dataset ended {self._left} batches before the one to resume at, so it is not the dataset of the "
                "interrupted training. Use the same data, or remove the backup folder."
            )
        self._left -= wanted
        if not self._left:
            self._drawn()
        return {}

    def _draw(self, iterator: Iterator[Any], wanted: int) -> int:
        """How many there were."""
        drawn = 0
        for batch in itertools.islice(iterator, wanted):
            self._each(self._batches - self._left + drawn, batch)
            drawn += 1
        return drawn
