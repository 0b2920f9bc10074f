"""The share of each epoch spent waiting for data, and which data was lost."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist.data_service.trainer.visitation import ended_since, log_faults, merged, newest_passes
from tfdist.data_service.trainer.wait import Waited, wait_for_data
from tfdist.ops.allreduce import reduce_figures
from tfdist.world import runtime


class DataWait(keras.callbacks.Callback):
    """Adds the time spent waiting for data to the logs of each epoch.

    You need it to answer "am I input-bound?": a share near 0 means that more preprocessing workers will not help, near
    1 that the model idles. The logs get `data_wait_seconds` and `data_wait_share` (mean of the ranks), for the training
    steps of the epoch without validation. See `tfdist.data_service.measure_wait` and `wait_for_data` for what counts as
    waiting. Put it before the callbacks that write logs, such as `keras.callbacks.TensorBoard`, which then shows them.

    At the end of an epoch in which elements were lost or duplicated, it logs the visitation report
    (`tfdist.data_service.visitation`). Of a pass that the ranks share, rank 0 logs what all of them together have seen.
    Endless data has no end at which anything would be missed.

    Example:

    ```python
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050").prefetch(2)
    callbacks = [tfdist.callbacks.DataWait(), keras.callbacks.TensorBoard("logs")]
    model.fit(tfdist.data_service.measure_wait(dataset), epochs=5, callbacks=callbacks)
    ```
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._passes = newest_passes()
        self._end: tuple[float, Waited] | None = None
        self._start = (time.perf_counter(), wait_for_data())

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        # Validation runs before the epoch ends and reads data of its own.
        self._end = (time.perf_counter(), wait_for_data())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        end, waited = self._end or (time.perf_counter(), wait_for_data())
        start, before = self._start
        difference = waited.since(before)
        mine = tf.constant([difference.seconds, difference.share(end - start)], tf.float64)
        if runtime.is_initialized():
            (mine,) = reduce_figures([mine], tfdist.Average, "data_wait")
        seconds, share = mine.numpy()
        if logs is not None:
            logs["data_wait_seconds"] = float(seconds)
            logs["data_wait_share"] = float(share)
        self._log_faults()

    def _log_faults(self) -> None:
        """Of a pass that the ranks share, only all of them together know what is missing; rank 0 says it."""
        found = ended_since(self._passes)
        if runtime.is_initialized() and tfdist.size() > 1:
            by_rank = tfdist.allgather_object(found, name="passes of the data service")
            own = [each for each in found if not each.shared]
            found = own + (merged(by_rank) if tfdist.rank() == 0 else [])
        log_faults(found)
