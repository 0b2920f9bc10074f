"""Keeps the state of elastic training in step with `fit`, under Horovod's names.

For a `fit` inside a function of `tfdist.elastic.run`. `DataParallel(elastic=True)` needs none of it.
"""

from __future__ import annotations

from typing import Any

import keras

from tfdist import errors
from tfdist.elastic.state import State


class _CountsBatches(keras.callbacks.Callback):
    """Keras calls it once for all batches that it takes at once (`steps_per_execution`)."""

    _begun = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun = batch

    def _taken(self, batch: int) -> int:
        """How many batches have ended with this one. Keras gives the last ones of an epoch too high a number."""
        steps = (self.params or {}).get("steps")
        return (batch if steps is None else min(batch, steps - 1)) - self._begun + 1


class UpdateBatchStateCallback(_CountsBatches):
    """Maintains `state.batch`: how many batches of the epoch this rank has trained on; 0 between epochs.

    A `fit` that continues mid-epoch counts from the batches before it.

    Args:
        state: A state with the attribute `batch`, such as `tfdist.elastic.KerasState(model, batch=0, epoch=0)`.

    Raises:
        ConfigError: If the state has no such attribute.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state: Any = _with_attribute(state, "batch")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._state.batch += self._taken(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Maintains `state.epoch`: how many epochs have ended.

    Args:
        state: A state with the attribute `epoch`.

    Raises:
        ConfigError: If the state has no such attribute.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state: Any = _with_attribute(state, "epoch")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._state.epoch += 1


class CommitStateCallback(_CountsBatches):
    """Commits an elastic state every few batches, or as soon as Keras returns from some, and at the end of each epoch.

    Put it last in the list, so that what the callbacks before it record in the state is committed with the weights.

    Args:
        state: The state of the model being trained.
        batches_per_commit: Batches between two commits. A commit is a copy of weights and optimizer state.

    Raises:
        ConfigError: If `batches_per_commit` is less than 1.

    Example:

    ```python
    state = tfdist.elastic.KerasState(model, batch=0, epoch=0)

    @tfdist.elastic.run
    def train(state):
        model.fit(
            batches_from(state.batch),
            steps_per_epoch=500 // tfdist.size() - state.batch,
            epochs=90 - state.epoch,
            callbacks=[
                tfdist.callbacks.DataParallel(),
                tfdist.callbacks.UpdateBatchStateCallback(state),
                tfdist.callbacks.UpdateEpochStateCallback(state),
                tfdist.callbacks.CommitStateCallback(state, batches_per_commit=10),
            ],
        )
    ```
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise errors.ConfigError(f"batches_per_commit must be 1 or more; received {batches_per_commit}.")
        self._state, self._batches_per_commit = state, batches_per_commit
        self._since_commit = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._since_commit = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._since_commit += self._taken(batch)
        if self._since_commit >= self._batches_per_commit:
            self._since_commit = 0
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._state.commit()


def _with_attribute(state: State, name: str) -> State:
    if not hasattr(state, name):
        raise errors.ConfigError(
            f"the state has no attribute {name!r}; create it with one, as in KerasState(model, {name}=0)."
        )
    return state
