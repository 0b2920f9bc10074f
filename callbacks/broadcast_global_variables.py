"""Starts every rank from the weights and optimizer state of one rank."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import fit_agreement
from tfdist.callbacks.fit.drift import checked
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.ops.graph import call
from tfdist.training import model_state


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives every rank the weights and optimizer state of one rank before the first step.

    You need it if you wrapped the optimizer by hand; `DataParallel` does it by itself. No step starts from weights that
    differ, neither at the start nor when training resumes. The adapted state of preprocessing layers is compared. Seed
    generators keep their state: set a different seed on each rank before making the model, otherwise all ranks drop the
    same units.

    Args:
        root_rank: The rank whose state all ranks get.
        device: Must be "".
        local_variables: One or more `keras.Variable` or `tf.Variable` that each rank keeps unchanged; the same on every
            rank.
        drift: As in `DataParallel`: what to do if the ranks' weights differ after the first step or an epoch.

    Raises:
        ConfigError: If an argument is invalid, or the model cannot be built before the first step.
        MismatchError: In `fit`, if a preprocessing layer was adapted differently on the ranks.

    Example:

    ```python
    model.fit(dataset, callbacks=[tfdist.callbacks.BroadcastGlobalVariablesCallback(0)])
    ```
    """

    _agrees_on_fit = True

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None, drift: str = "error") -> None:
        super().__init__()
        self._drift = checked(drift)
        call.refuse_device(device=device)
        if not 0 <= root_rank < tfdist.size():
            raise errors.ConfigError(f"root_rank must be 0 to {tfdist.size() - 1}; received {root_rank}.")
        self._root_rank = root_rank
        one = isinstance(local_variables, (keras.Variable, tf.Variable))
        self._local_variables = [local_variables] if one else list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Adds a variable that each rank keeps unchanged; call it before `fit`.

        Args:
            var: As one of `local_variables`.
        """
        self._local_variables.append(var)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        fit_agreement.agree(self)
        self._hook.drift.begin(self._drift, self._local_variables)
        self._hook.when_built(lambda: model_state.begin_equal(self.model, self._root_rank, keep=self._local_variables))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._hook.skips(batch):
            self._hook.drift.batch_begins(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._hook.drift.epoch_ends(epoch)
