"""Keras' checkpoints, written by one rank."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.callbacks.fit.model_hook import ModelHook, need_equal_batches
from tfdist.callbacks.store.checkpoint_place import InStore, OnDisk
from tfdist.callbacks.store.failure_series import FailureSeries, disk_error
from tfdist.system.atomic_file import need_room
from tfdist.system.local_path import address_of, local_path
from tfdist.training import model_state
from tfdist.world.session import session

_DESCRIPTION_BYTES = 1 << 20


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras' `ModelCheckpoint`, written by rank 0 only, completely or not at all.

    You need it instead of Keras' own on several ranks, where every rank would write the same file at the same time.
    Rank 0 decides whether to save, and the others wait until the file is complete. The file loads with plain
    `keras.models.load_model`, even without tfdist installed, and holds the learning rate of one process.

    The path may be an address, such as `s3://bucket/run/model-{epoch:02d}.keras`: then training waits for a file in the
    temporary folder only, which a thread puts into the store; `fit` waits for that at its end.

    A file that cannot be written, for example on a full disk, does not stop training: rank 0 logs an error with the
    cause, tries again at the next checkpoint, and reports the newest complete one at the end. The best model is then
    the best of those written.

    Args:
        *args: As Keras' `ModelCheckpoint`.
        **kwargs: As Keras' `ModelCheckpoint`.

    Raises:
        ConfigError: If the path is an address that nothing that is installed can open.
        TfdistError: On every rank, if the folder or the store cannot be written before the first step, or if Keras
            cannot save this model; names the file and the cause.

    Example:

    ```python
    tfdist.callbacks.ModelCheckpoint("model-{epoch:02d}.keras")
    ```
    """

    best: float | None
    filepath: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        address = address_of(kwargs["filepath"] if "filepath" in kwargs else args[0])
        self.filepath = address or str(local_path(self.filepath, "filepath"))
        self._place = OnDisk(self.filepath) if address is None else InStore(address)
        self._failures = FailureSeries("checkpoints")
        # Of what is written, and of what is on its way to a store; and whether anything could not be written since.
        self._best_written: float | None = None
        self._on_their_way: list[float | None] = []
        self._has_failed = False

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.save_freq != "epoch":
            need_equal_batches(self.model, f"ModelCheckpoint(save_freq={self.save_freq})", 'save_freq="epoch"')
        super().on_train_begin(logs)
        if not session.catches_up:  # rank 0 has checked it
            failure = tfdist.broadcast_object(self._check_folder(), 0, name="folder of the checkpoints")
            if failure:
                raise errors.TfdistError(failure)
        if self._has_failed:  # at the end of the fit before
            self.best, self._has_failed = self._best_written, False
        self._best_written = self.best
        self._failures.begin()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        self._place.wait()
        self._failures.end()
        if isinstance(self._place, InStore):  # so that all ranks find the files after `fit`
            tfdist.barrier(name="checkpoints are written")

    def _should_save_on_batch(self, batch: int) -> bool:
        return not self._hook.skips(batch) and bool(super()._should_save_on_batch(batch))

    def _save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        failure = None
        if tfdist.rank() == 0:
            failure = self._save_on_rank_zero(epoch, batch, dict(logs or {}))
        failure, self.best = tfdist.broadcast_object((failure, self.best), 0, name="checkpoint is written")
        if failure:
            raise errors.TfdistError(failure)

    def _check_folder(self) -> str | None:
        """Rank 0 creates the folder, as far as its name is known before the first epoch; returns what went wrong."""
        if tfdist.rank() != 0:
            return None
        try:
            self._place.check()
        except OSError as error:
            return self._could_not(self.filepath, error)
        return None

    def _save_on_rank_zero(self, epoch: int, batch: int | None, logs: dict[str, Any]) -> str | None:
        """Saves if it is due; returns an error that stops training, to be shared with the other ranks."""
        if self._has_failed:
            self._has_failed = False
            self.best = self._best_of([self._best_written, *self._on_their_way])
        path, best = self.filepath, self.best
        try:
            if self.save_best_only and self.monitor_op is None:
                self._set_monitor_op()  # Keras does it at the end of an epoch, which is too late for `save_freq=1`
            path = self._get_file_path(epoch, batch, logs)
            if self._should_save_model(epoch, batch, logs, path):
                self._put(path, self.best)
        except Exception as error:  # noqa: BLE001  (the other ranks wait to hear of it, whatever it is)
            if disk_error(error) is None:
                return self._could_not(path, error)
            self.best = best
            self._failed(path, error)
        return None

    def _put(self, path: str, best: float | None) -> None:
        self._on_their_way.append(best)
        try:
            with self._hook.local():
                self._place.write(path, self._write, lambda failure: self._written(path, best, failure))
        except BaseException:
            self._on_their_way.remove(best)
            raise

    def _written(self, path: str, best: float | None, failure: BaseException | None) -> None:
        """Called on rank 0, perhaps in a thread."""
        self._on_their_way.remove(best)
        if failure is None:
            self._best_written = best
            self._failures.succeeded(f"checkpoint {path}")
        else:
            self._has_failed = True
            self._failed(path, failure)

    def _best_of(self, values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return None if not known else functools.reduce(lambda a, b: b if self.monitor_op(b, a) else a, known)

    def _failed(self, path: str, error: BaseException) -> None:
        self._failures.failed(f"checkpoint {path}", error, path.rpartition("/")[0] or ".", self._size_bytes())

    def _could_not(self, path: str, error: Exception) -> str:
        return f"rank 0 could not write the checkpoint {path}: {type(error).__name__}: {error}"

    def _size_bytes(self) -> int:
        """The approximate size of the file: the variables and their description."""
        saved = self.model.weights if self.save_weights_only else model_state.variables_of(self.model)
        size = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in saved)
        return size + size // 20 + _DESCRIPTION_BYTES

    def _write(self, path: Path) -> None:
        if path.suffix == ".h5":
            need_room(path, self._size_bytes())  # HDF5 ends the process by SIGSEGV where its file cannot grow
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)


class BestModelCheckpoint(ModelCheckpoint):
    """`ModelCheckpoint` that keeps only the best model.

    Args:
        filepath: Where to write; ends in ".keras", or ".weights.h5" with `save_weights_only`.
        monitor: Name of the log to compare.
        **kwargs: As Keras' `ModelCheckpoint`, without `save_best_only`.

    Example:

    ```python
    tfdist.callbacks.BestModelCheckpoint("best.keras", monitor="val_accuracy")
    ```
    """

    def __init__(self, filepath: str, monitor: str = "val_loss", **kwargs: Any) -> None:
        super().__init__(filepath, monitor=monitor, save_best_only=True, **kwargs)
