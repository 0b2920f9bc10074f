"""Samples per second, and the time spent in communication."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.ops.allreduce import reduce_figures
from tfdist.world import runtime


class Throughput(keras.callbacks.Callback):
    """Adds the speed of each epoch to its logs.

    You need it to see whether more ranks pay off. The logs get `images_per_second` (mean of the ranks),
    `images_per_second_total` (sum over ranks), `communication_seconds` (mean of the ranks: time inside collectives,
    waiting for the others included) and `epoch_seconds`, all for the training steps of the epoch without validation.
    Put it before the callbacks that write logs, such as `keras.callbacks.TensorBoard`, which then shows them.

    Example:

    ```python
    callbacks = [tfdist.callbacks.Throughput(), tfdist.callbacks.RankZero(keras.callbacks.TensorBoard("logs"))]
    ```
    """

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._samples = self._hook.samples_seen()
        self._communication = runtime.communication_seconds()
        self._start = time.perf_counter()
        self._end = self._start
        self._communication_end = self._communication

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._end = time.perf_counter()
        self._communication_end = runtime.communication_seconds()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        seconds = self._end - self._start
        samples = self._hook.samples_seen() - self._samples
        mine = tf.constant(
            [samples / seconds if seconds else 0.0, self._communication_end - self._communication, seconds], tf.float64
        )
        rate, communication, seconds = reduce_figures([mine], tfdist.Average, "throughput")[0].numpy()
        if logs is not None:
            logs["images_per_second"] = float(rate)
            logs["images_per_second_total"] = float(rate * tfdist.size())
            logs["communication_seconds"] = float(communication)
            logs["epoch_seconds"] = float(seconds)
