"""Resumes an interrupted training at the batch where it was."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfdist
from tfdist import _compat, errors
from tfdist.callbacks import snapshot
from tfdist.callbacks.model_hook import ModelHook, broadcast_state
from tfdist.callbacks.snapshot import Position

_logger = logging.getLogger("tfdist")


class BackupAndRestore(keras.callbacks.Callback):
    """Keeps the state of a training in files, and resumes all ranks at the same epoch and batch.

    You need it where a job may be killed: start the same script again, and `fit` goes on where the last file was
    written. Rank 0 writes weights, optimizer state and position, and the random state and metrics of every rank. Files
    are complete or invisible, and checked when they are read; the newest good one is used. Where the learning rate is
    scaled by the number of ranks, another number of ranks resumes at its own rate, but from the beginning of an epoch
    only.

    In the middle of an epoch the batches that were trained on already are drawn and dropped, so the dataset must yield
    the same order again: give `shuffle` a seed. Callbacks with a state of their own, such as `EarlyStopping`, begin
    anew.

    Args:
        backup_dir: Folder for the files, which rank 0 must reach. Use one folder for one training.
        save_freq: "epoch", or the number of batches between two files.
        double_checkpoint: Whether the file before the newest is kept too.
        delete_checkpoint: Whether the folder is removed when `fit` has ended.

    Raises:
        ConfigError: If an argument cannot be honoured.
        TfdistError: On every rank, if rank 0 cannot write or read; names folder and cause.

    Example:

    ```python
    model.fit(dataset, epochs=90, callbacks=[DataParallel(), BackupAndRestore("backup", save_freq=1000)])
    ```
    """

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
        self._folder = Path(backup_dir)
        self._save_freq = save_freq
        self._keep = 2 if double_checkpoint else 1
        self._delete = delete_checkpoint
        self._epoch = 0
        self._saved_at = 0

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._hook.resume_batch = 0
        loaded, failure = self._load()
        if failure:
            raise errors.TfdistError(failure)
        if loaded is None:
            return
        position, local = loaded
        broadcast_state(self.model, root_rank=0)
        _compat.set_initial_epoch(self.model, position.epoch)
        self._hook.resume_batch = self._saved_at = position.batch
        if position.batch:
            self._skip(position.batch, local)
        else:
            self._set_local_state(local)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._save_freq == "epoch" or self._hook.skips(batch):
            return
        if batch + 1 - self._saved_at >= int(self._save_freq):
            self._saved_at = batch + 1
            self._save(Position(self._epoch, batch + 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._hook.resume_batch = self._saved_at = 0
        self._save(Position(epoch + 1, 0))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # A later fit of this model starts from its own first epoch.
        _compat.set_initial_epoch(self.model, 0)
        if self._delete:
            tfdist.barrier(name="training has ended")
            if tfdist.rank() == 0:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _save(self, position: Position) -> None:
        by_rank = tfdist.allgather_object(self._local_state(), name="state of every rank")
        failure = None
        if tfdist.rank() == 0:
            arrays = {f"local/{rank}/{name}": v for rank, state in enumerate(by_rank) for name, v in state.items()}
            arrays |= {f"weight/{index}": value for index, value in enumerate(self.model.get_weights())}
            store: dict[str, Any] = {}
            self.model.optimizer.save_own_variables(store)
            arrays |= {f"optimizer/{name}": value for name, value in store.items()}
            arrays["ranks"] = np.array(tfdist.size())
            try:
                snapshot.write(self._folder, position, arrays, self._keep)
            except OSError as error:
                failure = f"rank 0 could not write a backup to {self._folder}: {type(error).__name__}: {error}"
        failure = tfdist.broadcast_object(failure, 0, name="backup is written")
        if failure:
            raise errors.TfdistError(failure)

    def _load(self) -> tuple[tuple[Position, dict[str, Any]] | None, str | None]:
        """Rank 0 reads into its model; returns position and state of this rank, or what went wrong."""
        message: tuple[Position | None, list[dict[str, Any]], str | None] = (None, [], None)
        if tfdist.rank() == 0:
            try:
                message = self._read()
            except (OSError, ValueError) as error:
                message = (None, [], f"rank 0 could not resume from {self._folder}: {error}")
        position, by_rank, failure = tfdist.broadcast_object(message, 0, name="position to resume at")
        if position is None:
            return None, failure
        return (position, by_rank[tfdist.rank()] if by_rank else {}), None

    def _read(self) -> tuple[Position | None, list[dict[str, Any]], str | None]:
        found = snapshot.newest_valid(self._folder)
        if found is None:
            return None, [], None
        position, arrays, skipped = found
        for line in skipped:
            _logger.warning("tfdist: %s", line)
        ranks = int(arrays["ranks"])
        if ranks != tfdist.size() and position.batch:
            raise ValueError(
                f"it was written in the middle of an epoch by {ranks} ranks, and now there are {tfdist.size()}, which "
                f"deal out the data in another way. Start {ranks} ranks, or remove the folder."
            )
        self.model.set_weights([arrays[f"weight/{index}"] for index in range(len(self.model.weights))])
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.optimizer.load_own_variables(
            {name.removeprefix("optimizer/"): value for name, value in arrays.items() if name.startswith("optimizer/")}
        )
        _logger.warning("tfdist: resuming at epoch %d, batch %d from %s", position.epoch, position.batch, self._folder)
        if ranks != tfdist.size():
            return position, [], None
        return position, [_part(arrays, f"local/{rank}/") for rank in range(ranks)], None

    def _skip(self, batches: int, local: dict[str, Any]) -> None:
        """Has `fit` draw the first batches without training on them, so that their numbers stay right."""
        model, original = self.model, self.model.train_function
        left = batches

        def draw(iterator: Iterator[Any]) -> dict[str, Any]:
            nonlocal left
            for _ in range(min(model.steps_per_execution, left)):
                next(iterator)
                left -= 1
            if left == 0:
                model.train_function = original
                self._set_local_state(local)
            return {}

        model.train_function = draw

    def _local_state(self) -> dict[str, Any]:
        """What differs by rank: random state, gradients being accumulated, and metrics in the middle of an epoch."""
        return {str(index): variable.numpy() for index, variable in enumerate(self._local_variables())}

    def _set_local_state(self, state: dict[str, Any]) -> None:
        for index, variable in enumerate(self._local_variables()):
            if str(index) in state:
                variable.assign(state[str(index)])

    def _local_variables(self) -> list[Any]:
        weights = {id(variable) for variable in self.model.weights}
        seeds = [variable for variable in self.model.variables if id(variable) not in weights]
        own = [*seeds, *_compat.accumulators(self.model.optimizer), *self.model.metrics_variables]
        return list({id(variable): variable for variable in own}.values())


def _part(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
