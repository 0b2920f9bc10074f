"""Keras' checkpoints, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

import tfdist
from tfdist import errors
from tfdist.atomic_file import write_atomically
from tfdist.callbacks.model_hook import ModelHook, need_equal_batches


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras' `ModelCheckpoint`, written by rank 0 only, completely or not at all.

    You need it in place of Keras' own on several ranks: there, every rank writes the same file at the same time. Rank
    0 decides whether to save, and the others wait until the file is there. The file loads with plain
    `keras.models.load_model`, also where tfdist is not installed, and holds the learning rate of one process.

    Args:
        *args: As Keras' `ModelCheckpoint`.
        **kwargs: As Keras' `ModelCheckpoint`.

    Raises:
        TfdistError: On every rank, if rank 0 could not write; names the file and the cause.

    Example:

    ```python
    tfdist.callbacks.ModelCheckpoint("model-{epoch:02d}.keras")
    ```
    """

    best: float | None

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.save_freq != "epoch":
            need_equal_batches(f"ModelCheckpoint(save_freq={self.save_freq})")
        super().on_train_begin(logs)

    def _should_save_on_batch(self, batch: int) -> bool:
        return not self._hook.skips(batch) and bool(super()._should_save_on_batch(batch))

    def _save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        failure = None
        if tfdist.rank() == 0:
            failure = self._save_on_rank_zero(epoch, batch, dict(logs or {}))
        failure, self.best = tfdist.broadcast_object((failure, self.best), 0, name="checkpoint is written")
        if failure:
            raise errors.TfdistError(failure)

    def _save_on_rank_zero(self, epoch: int, batch: int | None, logs: dict[str, Any]) -> str | None:
        """Saves if it is time to; returns what went wrong, which the other ranks must hear of."""
        path = self.filepath
        try:
            if self.save_best_only and self.monitor_op is None:
                self._set_monitor_op()  # Keras does it at the end of an epoch, which is too late for `save_freq=1`
            path = self._get_file_path(epoch, batch, logs)
            if self._should_save_model(epoch, batch, logs, path):
                with self._hook.local():
                    write_atomically(path, self._write)
        except Exception as error:  # noqa: BLE001  (the other ranks wait to hear of it, whatever it is)
            return f"rank 0 could not write the checkpoint {path}: {type(error).__name__}: {error}"
        return None

    def _write(self, path: Path) -> None:
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)


class BestModelCheckpoint(ModelCheckpoint):
    """`ModelCheckpoint` that keeps the best model only.

    Args:
        filepath: Where to write; ends in ".keras", or ".weights.h5" with `save_weights_only`.
        monitor: Name of the log that decides.
        **kwargs: As Keras' `ModelCheckpoint`, without `save_best_only`.

    Example:

    ```python
    tfdist.callbacks.BestModelCheckpoint("best.keras", monitor="val_accuracy")
    ```
    """

    def __init__(self, filepath: str, monitor: str = "val_loss", **kwargs: Any) -> None:
        super().__init__(filepath, monitor=monitor, save_best_only=True, **kwargs)
