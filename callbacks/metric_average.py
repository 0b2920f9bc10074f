"""Aggregates logs over all ranks."""

from __future__ import annotations

from typing import Any

import keras

from tfdist.callbacks.fit import fit_agreement, metric_reduction
from tfdist.callbacks.fit.drift import checked
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.ops.graph import call


class MetricAverageCallback(keras.callbacks.Callback):
    """Aggregates the logs of each epoch and each evaluation over all ranks, for every callback in the list.

    You need it if callbacks decide by logs (`EarlyStopping`, `ReduceLROnPlateau`) or write them: all ranks see the same
    numbers, so they decide alike. Keras metrics are exact, as if one process had seen all data, even if ranks have
    different numbers of samples or none: their states are summed. A custom metric class is exact if it declares
    `tfdist_reduction = "sum"`; other metrics, and logs from a custom `train_step`, are means weighted by the samples
    each rank saw. The `loss` of each batch is the mean over ranks, so `TerminateOnNaN` stops all of them together. For
    these its place in the list does not matter.

    Numbers that other callbacks put into the logs of an epoch, as from an evaluation of their own, become their means
    over the ranks, if these callbacks are before it in the list and all ranks have the number.

    Args:
        device: Must be "".
        drift: As in `DataParallel`: what to do if the ranks' weights differ after the first step or an epoch.

    Raises:
        ConfigError: If an argument is invalid.

    Example:

    ```python
    callbacks = [tfdist.callbacks.MetricAverageCallback(), keras.callbacks.EarlyStopping(patience=2)]
    ```
    """

    _agrees_on_fit = True

    def __init__(self, device: str = "", drift: str = "error") -> None:
        super().__init__()
        self._drift = checked(drift)
        call.refuse_device(device=device)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        fit_agreement.agree(self)
        self._hook.reduces_metrics = True
        self._hook.begin("train")
        self._hook.drift.begin(self._drift)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._hook.skips(batch):
            self._hook.drift.batch_begins(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._hook.drift.epoch_ends(epoch)
        metric_reduction.average_others({} if logs is None else logs, self._hook.reduced_names)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._hook.epoch_end.begin(epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._hook.end("train")

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._hook.reduces_metrics = True
        self._hook.begin("test")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._hook.end("test")
