"""Where each epoch's collectives spent their time, which rank is the straggler, and the gradient noise scale."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import straggler
from tfdist.callbacks.fit.compiled_optimizer import CompiledOptimizer
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.callbacks.fit.noise_scale import DEFAULT_DECAY, GradientNorms, estimate
from tfdist.native import keras_version
from tfdist.system.local_path import local_path
from tfdist.training import optimizer

_logger = logging.getLogger("tfdist")
# Less than this is no reason to look for a slow rank: in a short epoch any hiccup is a large share.
_LEAST_WARNED_SECONDS = 1.0
_PARTS = ("seconds", "wait_seconds", "exchange_seconds", "pack_seconds", "reduce_seconds", "unpack_seconds")


class Metrics(keras.callbacks.Callback):
    """Adds to the logs of each epoch where its collectives spent their time, and which rank was the straggler.

    You need it to see why training does not scale as expected. The logs of every rank get, for the training steps of
    the epoch without validation:

    - `collective_seconds`, `collective_wait_seconds`, `collective_exchange_seconds`, `collective_pack_seconds`,
      `collective_reduce_seconds`, `collective_unpack_seconds`: as in `tfdist.metrics()` over all operations, mean of
      the ranks.
    - `straggler_rank`: the rank that waited least, so the others waited for it.
    - `straggler_seconds`: how much longer the others waited. Near 0 if all ranks are equally fast or take turns being
      slow.
    - with `gradient_noise_scale`: `gradient_noise_scale`, in samples (McCandlish et al. 2018, arXiv:1812.06162,
      appendix A.1): roughly the global batch size beyond which more samples per step help little. Its averages continue
      across epochs. NaN until there are enough steps.

    Put it before the callbacks that write logs, such as `keras.callbacks.TensorBoard`, which then shows them.

    Args:
        log_dir: Folder in which rank 0 writes the values for TensorBoard, as `tfdist/NAME`; None: only the logs. If
            that rank is lost, the next rank 0 goes on in another file.
        straggler_share: Rank 0 warns after an epoch if `straggler_seconds` exceed this share of it and one second.
        gradient_noise_scale: Whether to estimate it, from the squared norms of each rank's gradient and of their mean,
            which reads all gradients once more in each step. Needs two or more ranks with batches of equal size; put
            the callback after `DataParallel`.
        decay: Decay per step of the averages for the noise scale; at least 0 and less than 1.

    Raises:
        ConfigError: If an argument is invalid.

    Example:

    ```python
    callbacks = [tfdist.callbacks.DataParallel(), tfdist.callbacks.Metrics("logs", gradient_noise_scale=True)]
    ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        straggler_share: float = 0.1,
        gradient_noise_scale: bool = False,
        decay: float = DEFAULT_DECAY,
    ) -> None:
        super().__init__()
        if not straggler_share > 0:
            raise errors.ConfigError(f"straggler_share must be a number greater than 0; received {straggler_share}.")
        self._log_dir = None if log_dir is None else _writable(log_dir)
        self._straggler_share = straggler_share
        self._norms = GradientNorms(decay) if gradient_noise_scale else None
        self._compiled = CompiledOptimizer("gradient_noise_scale is", "Omit it for such a model.")
        self._writer: Any = None

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)
        if self._norms is None:
            return
        if tfdist.size() == 1:
            raise errors.ConfigError(
                "gradient_noise_scale compares the gradients of several ranks, but this job has one. Start two or more."
            )
        if optimizer.observe(model.optimizer, "gradient noise scale", self._norms.observe):
            model.train_function = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._compiled.begin(self.model)
        if self._log_dir is not None and tfdist.rank() == 0:
            tf.io.gfile.makedirs(self._log_dir)  # what cannot be written is known before the first epoch

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._samples = self._hook.samples_seen()
        self._end: tuple[float, list[float]] | None = None
        self._start = (time.perf_counter(), _costs())

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        # Validation runs before the epoch ends, with collectives of its own.
        self._end = (time.perf_counter(), _costs())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        end, costs = self._end or (time.perf_counter(), _costs())
        start, before = self._start
        own = [after - cost for after, cost in zip(costs, before, strict=True)]
        by_rank = tfdist.allgather(tf.constant([own], tf.float64), name="metrics").numpy()
        slow = straggler.find([float(wait) for wait in by_rank[:, _PARTS.index("wait_seconds")]])
        told = {f"collective_{part}": float(mean) for part, mean in zip(_PARTS, by_rank.mean(axis=0), strict=True)}
        told |= {"straggler_rank": float(slow.rank), "straggler_seconds": slow.seconds}
        if self._norms is not None:
            self._compiled.check(self.model)
            told["gradient_noise_scale"] = self._noise_scale(self._norms)
        if logs is not None:
            logs.update(told)
        self._warn(slow, end - start)
        self._write(epoch, told)

    def _noise_scale(self, norms: GradientNorms) -> float:
        own, reduced = norms.read() or (float("nan"), float("nan"))
        batches = keras_version.inner_optimizer(self.model.optimizer).gradient_accumulation_steps or 1
        batch = batches * (self._hook.samples_seen() - self._samples) / max(self._hook.epoch_end.batches(), 1)
        mine = tf.constant([own, batch], tf.float64)
        small, batch = tfdist.allreduce(mine, op=tfdist.Average, name="gradient noise scale").numpy()
        if not batch > 0:
            return float("nan")
        squared_norm, trace = estimate(float(small), reduced, float(batch), float(batch) * tfdist.size())
        return trace / squared_norm if squared_norm > 0 else float("nan")

    def _warn(self, slow: straggler.Straggler, epoch_seconds: float) -> None:
        least = max(self._straggler_share * epoch_seconds, _LEAST_WARNED_SECONDS)
        if tfdist.rank() == 0 and slow.seconds > least:
            _logger.warning(
                "the ranks waited %.1f s of this epoch's %.1f s for rank %d, the straggler. Check what it shares its "
                "processor, disk or network with, and whether its data takes longer.",
                slow.seconds,
                epoch_seconds,
                slow.rank,
            )

    def _write(self, epoch: int, told: dict[str, float]) -> None:
        if self._log_dir is None or tfdist.rank() != 0:
            return
        if self._writer is None:  # also on a rank that became rank 0 when that was lost
            self._writer = tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default():
            for name, value in told.items():
                # tf.summary.scalar needs the package of TensorBoard where training runs.
                tf.summary.write(f"tfdist/{name}", tf.constant(value, tf.float32), epoch, _scalars())
        self._writer.flush()


def _scalars() -> Any:
    """The metadata that marks a value as a scalar for TensorBoard."""
    plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
    return tf.compat.v1.SummaryMetadata(plugin_data=plugin)


def _costs() -> list[float]:
    """The parts, over all operations."""
    collectives = tfdist.metrics()["collectives"].values()
    return [float(sum(cost[part] for cost in collectives)) for part in _PARTS]


def _writable(log_dir: str | os.PathLike[str]) -> str:
    """TensorFlow writes these files, so remote stores that it supports work too."""
    text = os.fspath(log_dir)
    scheme = text.partition("://")[0] if "://" in text else ""
    return text if scheme in tf.io.gfile.get_registered_schemes() else str(local_path(text, "log_dir"))
