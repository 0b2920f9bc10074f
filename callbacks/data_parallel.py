"""The plugin: one callback that makes `model.fit` data-parallel."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import tfdist
from tfdist import config, errors
from tfdist.callbacks.autotune import Autotune, need_equal_settings
from tfdist.callbacks.fit import fit_agreement, metric_reduction, training_data
from tfdist.callbacks.fit.data_digest import complaint
from tfdist.callbacks.fit.drift import checked
from tfdist.callbacks.fit.model_hook import ModelHook, need_equal_batches
from tfdist.callbacks.model_checkpoint import ModelCheckpoint
from tfdist.callbacks.rate.optimizer_warmup import OptimizerWarmup
from tfdist.elastic import advice, keras_fit, loop
from tfdist.ops.compression import AnyCompression, Compression
from tfdist.ops.graph import xla
from tfdist.training import adapted_state, model_optimizer, model_state, optimizer, random_state
from tfdist.world import fit_hook
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")


class DataParallel(keras.callbacks.Callback):
    """Makes `model.fit` data-parallel over all ranks, for a model compiled in the ordinary way.

    You need it, and `tfdist.shard` around the data, to train a single-process script on many processes. It

    - makes the model's optimizer all-reduce gradients, once per update. The same goes for every other optimizer that a
      custom `train_step` uses, if it is an attribute of the model or of a layer or model inside it, in lists and dicts
      too. An optimizer held only by a closure or a global variable is not found;
    - multiplies their learning rates or `LearningRateSchedule`s by the number of ranks, with an optional warm-up. The
      result equals one process that trains at that rate on the global batch. With data from
      `tfdist.shard(..., global_batch=N)` the rate stays that of the script, for any number of ranks;
    - starts all ranks from the weights and optimizer state of rank 0;
    - aggregates the logs of each epoch over all ranks, so that `EarlyStopping`, `ReduceLROnPlateau` and
      `TerminateOnNaN` act alike on all ranks;
    - gives each rank its own dropout masks, noise and augmentation, even if all ranks set the same seed: once per
      model, a number is folded into its seed generators and that of `keras.random`. Rank 0 is unchanged;
    - compares the adapted state of the model's preprocessing layers (vocabularies, boundaries) before the first step,
      and sets the constants of `Normalization` from the weights of rank 0;
    - makes Keras' own `BatchNormalization(synchronized=True)` normalise over the batches of all ranks, as
      `tfdist.SyncBatchNormalization` does: in training steps only, including nested models, with weights, configuration
      and files unchanged. Other batch normalisation uses each rank's own batch;
    - averages moving statistics (batch normalisation), and other floating-point weights that no gradient changes, over
      the ranks at the end of each training epoch, except variables given to an optimizer's `register_local_var`;
    - silences Keras' output on all ranks but 0;
    - continues when a rank is lost, with `elastic=True`;
    - searches for the fastest settings of the collectives, with `TFDIST_AUTOTUNE=1`;
    - allows unequal numbers of batches per epoch, for data from `tfdist.shard(..., remainder="join")`;
    - takes steps over large batches in parts, for data from `tfdist.shard(..., global_batch=N, max_local_batch=M)`;
    - warns if all ranks train on the same data;
    - stops training if the weights of the ranks drift apart.

    Calls `tfdist.init()` if the script has not. In a world of one it has no measurable effect.

    Args:
        compression: Wire type of gradients: a member of `tfdist.Compression`, its name, or a `Compressor` of your own;
            None uses `TFDIST_COMPRESSION`, by default "none".
        warmup_epochs: Epochs over which the rate rises to its scaled value, as in `LearningRateWarmupCallback`; may be
            fractional. Needs `scale_learning_rate`.
        scale_learning_rate: Whether to multiply the rate by the number of ranks, unless the data has a `global_batch`.
            Files store the rate of one process, in a warm-up too: a rate set later, by you or a callback, also counts
            as scaled and is divided when saved.
        checkpoint: Path or address of a file that rank 0 writes after each epoch, or a `keras.callbacks.Callback` to
            run with this one; None writes no checkpoint.
        average_metrics: Whether to aggregate logs over all ranks.
        elastic: Whether training continues when a rank is lost, in a job started with `tfdistrun --elastic`: the others
            return to the newest commit, mid-epoch, and share the rest of the epoch. No sample is repeated or skipped,
            except in an incomplete last round. `fit` needs `tfdist.shard(dataset)` of a dataset of known length,
            followed only by map, batch and prefetch, without `steps_per_epoch`; or endless data from a data service,
            with `steps_per_epoch`. A commit is a copy of weights and optimizer state in memory.
        batches_per_commit: Steps between two commits, with `elastic`; None is 1. The end of an epoch also commits.
        steps_per_epoch: Steps per epoch, for a warm-up on data of unknown length.
        quiet_ranks: Whether ranks other than 0 print nothing through Keras.
        drift: What to do if the ranks' trainable weights differ; they are compared after the first step and each epoch
            of each fit. "error" raises a `MismatchError` on every rank, "warn" warns, "off" skips the comparison.
            Weights local to a rank are left out. Small differences, from rounding, only warn.

    Attributes:
        data_of_fit: What an elastic `fit` trains on, where Keras' own `fit` has yet to begin.

    Raises:
        ConfigError: If an argument is invalid.
        MismatchError: In `fit`, if a preprocessing layer was adapted differently on the ranks: adapt it before
            `tfdist.shard`.

    Example:

    ```python
    model.compile(keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy")
    model.fit(tfdist.shard(dataset), epochs=5, callbacks=[tfdist.callbacks.DataParallel()])
    ```
    """

    _agrees_on_fit = True

    def __init__(  # noqa: PLR0913 -- settings, all by keyword
        self,
        compression: AnyCompression | None = None,
        warmup_epochs: float = 0,
        scale_learning_rate: bool = True,
        checkpoint: str | Path | keras.callbacks.Callback | None = None,
        average_metrics: bool = True,
        elastic: bool = False,
        steps_per_epoch: int | None = None,
        quiet_ranks: bool = True,
        batches_per_commit: int | None = None,
        drift: str = "error",
    ) -> None:
        super().__init__()
        self._drift = checked(drift)
        if batches_per_commit is not None and not elastic:
            raise errors.ConfigError(
                f"batches_per_commit={batches_per_commit} needs elastic=True; without it nothing is committed. Write "
                f"DataParallel(elastic=True, batches_per_commit={batches_per_commit}), or omit batches_per_commit."
            )
        if batches_per_commit is not None and batches_per_commit < 1:
            raise errors.ConfigError(f"batches_per_commit must be 1 or more; received {batches_per_commit}.")
        self.elastic = elastic
        self.batches_per_commit = batches_per_commit or 1
        self._made_in = traceback.extract_stack(limit=2)[0]
        if warmup_epochs and not scale_learning_rate:
            raise errors.ConfigError(
                f"warmup_epochs={warmup_epochs} needs scale_learning_rate=True: the warm-up rises to the scaled rate. "
                "For a rate of your own use LearningRateWarmupCallback."
            )
        settings = config.read()
        if elastic and settings.autotune != "0":
            name = config.variable("autotune")
            raise errors.ConfigError(
                f"{name}={settings.autotune} needs the same ranks from start to end; received elastic=True. Tune in "
                f"a job that is not elastic and use the settings it finds, or set {name}=0."
            )
        tfdist.init()
        self.is_followed = self._watch_fit(settings)
        self._autotune = Autotune() if settings.autotune != "0" else None
        self._compression = Compression.of(compression) if compression else None
        self._warmup_epochs = warmup_epochs
        self._scales = scale_learning_rate
        self._steps_per_epoch = steps_per_epoch
        self._average_metrics = average_metrics
        self._quiet_ranks = quiet_ranks
        self._warmups: list[OptimizerWarmup] = []
        by_path = isinstance(checkpoint, (str, Path))
        self._checkpoint: Any = ModelCheckpoint(checkpoint) if by_path else checkpoint
        self._compared = self._steps_taken = self._has_skipped = False
        self.data_of_fit: Any = None

    def _watch_fit(self, settings: config.Config) -> bool:
        """Whether `fit` need not be wrapped; else it is, and an elastic fit reports that it found this callback."""
        followed = not (self.elastic and settings.elastic)
        if not followed:
            fit_hook.install(lambda: keras_fit.fit)
        return followed

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        for part in self._parts():
            part.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if self._quiet_ranks and tfdist.rank() != 0:
            keras.config.disable_interactive_logging()
        self._hook = ModelHook.of(model)
        self._hook.averages_statistics = True
        self._hook.reduces_metrics = self._average_metrics
        if not self._hook.synchronizes_moments:
            self._hook.synchronizes_moments = True
            model.train_function = None
        self._distribute(model)
        optimizers = model_optimizer.optimizers_of(model)
        # Taken before any callback restores an earlier training: a rate in the middle of a warm-up was rounded.
        self._base_rates = [optimizer.unscaled_learning_rate(each) for each in optimizers]
        self._scale(optimizers)
        for part in (self._checkpoint, self._autotune):
            if part is not None:
                part.set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._compared = self._steps_taken = self._has_skipped = False
        session.fit_without_step = True
        fit_agreement.agree(self)
        training_data.need_global_batches(self.model)
        self._scale_as_data_asks()
        self._weigh_where_uneven()
        self._hook.split_large_batches()
        self._compare_with_job()
        if not self.elastic:
            need_equal_settings()
        self._hook.begin("train")
        self._hook.drift.begin(self._drift, in_epoch=not self.elastic)
        self._hook.when_built(self._begin_equal)
        if session.catches_up:  # the model is built, and `resume` compares it with those of the others
            random_state.fold(self.model)
        else:
            self._share_base_rates()
        self._warmups = self._make_warmups() if self._warmup_epochs else []
        for part in self._parts():
            part.on_train_begin(logs)

    def resume(self, has_newcomers: bool = False) -> None:
        """Replaces `on_train_begin` when elastic training continues, possibly with other ranks.

        Args:
            has_newcomers: Whether some of the ranks begin this training, which all of them know.
        """
        self._compared = True  # what came first has been
        if self._quiet_ranks and tfdist.rank() == 0:
            keras.config.enable_interactive_logging()  # rank 0 may be lost
        self._hook.begin("train")
        self._hook.drift.resume()
        if self._scales:
            self._scale(model_optimizer.optimizers_of(self.model))
        if has_newcomers:  # they have the rate of this number of ranks already, so the others need it first
            model_state.begin_equal(self.model, root_rank=0)
            self._share_base_rates()
        if self._warmups:
            self._warmups = self._make_warmups()
            for warmup in self._warmups:
                warmup.on_train_begin()

    def sum_metrics(self) -> list[Any]:
        """What the metrics of all ranks have counted in this epoch, for a commit. Every rank calls it."""
        return list(metric_reduction.summed_states(self.model))

    def add_metrics(self, sums: Sequence[Any]) -> None:
        """Adds what was counted before a loss to the metrics of the ranks, after their first step."""
        metric_reduction.add_states(self.model, sums)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        for part in self._parts():
            part.on_train_end(logs)
        self._hook.end("train")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._hook.epoch_end.begin(epoch)
        for part in self._parts():
            part.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._need_a_batch(logs or {})
        self._compare_data_once(after=self._steps_taken)
        self._hook.drift.epoch_ends(epoch)
        for part in self._parts():
            part.on_epoch_end(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # Not when the first batch ends: Keras may call that on another thread, beside the next step.
        # Not where a rank may have no second batch.
        self._compare_data_once(after=self._steps_taken and not self._hook.joins)
        self._has_skipped = self._has_skipped or self._hook.skips(batch)
        self._steps_taken = self._steps_taken or not self._hook.skips(batch)
        session.fit_without_step = not self._steps_taken
        if not self._hook.skips(batch):
            self._hook.drift.batch_begins(batch)
        for part in self._parts():
            part.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for part in self._parts():
            part.on_train_batch_end(batch, logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._hook.begin("test")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._hook.end("test")

    def _begin_equal(self) -> None:
        model_state.begin_equal(self.model, root_rank=0)
        random_state.fold(self.model)

    def _parts(self) -> list[keras.callbacks.Callback]:
        return [part for part in (*self._warmups, self._checkpoint, self._autotune) if part is not None]

    def _distribute(self, model: keras.Model) -> None:
        """From here on the optimizers' gradients are all-reduced; a step traced earlier is traced again."""
        named = model_optimizer.named_optimizers(model)
        if not named:
            raise errors.ConfigError("the model has no optimizer. Call model.compile(optimizer=...) before fit.")
        compression = self._compression or Compression.of(config.read().compression)
        wrapped = self._hook.wrapped_optimizers
        for path, each in named.items():
            if not optimizer.is_distributed(each):
                optimizer.distribute(each, compression=compression)
                if each is not model.optimizer:
                    optimizer.set_label(each, f"gradients of {path}")
                wrapped.append(each)
                model.train_function = None
            # An optimizer that the script wrapped keeps its own compression unless this callback names one.
            elif (self._compression or any(each is other for other in wrapped)) and optimizer.set_compression(
                each, compression
            ):
                model.train_function = None
        obstacle = xla.obstacle() if model.jit_compile else None
        if obstacle:
            model.jit_compile = False
            model.train_function = None
            if tfdist.rank() == 0:
                _logger.warning("the step is not compiled by XLA: %s", obstacle)

    def _weigh_where_uneven(self) -> None:
        """Ranks with unequal batches are weighted by samples; a step traced without that is traced again."""
        if model_optimizer.accumulates(self.model):  # a rank that is through would keep what was never applied
            need_equal_batches(self.model, "gradient_accumulation_steps", "it to None")
        self._hook.joins = training_data.is_uneven(self.model)
        weighs = self._hook.joins or training_data.global_batch(self.model) is not None
        if weighs != self._hook.weighs:
            self._hook.weighs = weighs
            adapted_state.drop_traces(self.model)

    def _scale(self, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
        factor = self._factor()
        for each in optimizers:
            if self._scales or optimizer.learning_rate_scale(each) != 1.0:
                optimizer.scale_learning_rate(each, factor)

    def _factor(self) -> int:
        """What the rate of one process is multiplied by: as often as the global batch is that of the script."""
        if not self._scales or training_data.global_batch(self.model, self.data_of_fit) is not None:
            return 1
        return tfdist.size()

    def _scale_as_data_asks(self) -> None:
        """Corrects the rates of a list of callbacks that was made before `fit` had its data."""
        optimizers = model_optimizer.optimizers_of(self.model)
        if self._scales and any(optimizer.learning_rate_scale(each) != self._factor() for each in optimizers):
            self._scale(optimizers)
        if self._factor() > 1 and tfdist.rank() == 0 and training_data.may_hide_global_batch(self.model):
            _logger.warning("%s", training_data.HIDDEN.format(size=tfdist.size()))

    def _share_base_rates(self) -> None:
        """A warm-up begins with the rates of rank 0, as all ranks begin with its state."""
        if self._warmup_epochs and tfdist.size() > 1:
            self._base_rates = tfdist.broadcast_object(self._base_rates, 0, name="rates of one process")

    def _make_warmups(self) -> list[OptimizerWarmup]:
        warmups = []
        for each, base_rate in zip(model_optimizer.optimizers_of(self.model), self._base_rates, strict=True):
            warmup = OptimizerWarmup(each, base_rate, self._factor(), self._warmup_epochs, self._steps_per_epoch)
            warmup.set_model(self.model)
            warmup.set_params(self.params)
            warmups.append(warmup)
        return warmups

    def _compare_with_job(self) -> None:
        """A lost rank is survived if the job is elastic, through this callback or a loop around `fit`."""
        if self.elastic:
            advice.need_elastic_job("DataParallel(elastic=True)")
            if not self.is_followed:
                raise errors.ConfigError(
                    "fit did not find this DataParallel(elastic=True), so a lost rank would end this job. Pass it to "
                    f"fit by itself or in a list. With {config.variable('early')}=0, also create it on a line before "
                    "the call of fit."
                )
        elif not loop.is_running():
            advice.need_elastic_script(f"{self._made_in.filename}, line {self._made_in.lineno}: {self._made_in.line}")

    def _need_a_batch(self, logs: dict[str, Any]) -> None:
        """After the first epoch: where ranks do not join, either all have had a batch or none has."""
        if self._compared or self.elastic or self._hook.joins or self._hook.samples_seen():
            return
        # A train function of the script's own has trained; or the fit went on at the end of an epoch.
        if self._has_skipped or any(not name.startswith("val_") for name in logs):
            return
        raise errors.ConfigError(
            f"no rank got a batch in the first epoch of fit, so nothing was trained. Each of the {tfdist.size()} ranks "
            'needs a full batch in an epoch: provide more data, choose a smaller batch, or use remainder="join" of '
            "tfdist.shard."
        )

    def _compare_data_once(self, after: bool) -> None:
        if self._compared or not after:
            return
        self._compared = True
        is_told = training_data.outline_of_arrays(self.model) is not None  # when the fit began
        if self._hook.ranks_see_same_data() and tfdist.rank() == 0 and not is_told:
            _logger.warning("%s", complaint(tfdist.size(), bool(training_data.remainders(self.model))))
