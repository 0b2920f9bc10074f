"""Runs any Keras callback on rank 0 only."""

from __future__ import annotations

from typing import Any

import keras

import tfdist
from tfdist.callbacks.model_hook import ModelHook

# Every hook of a Keras callback that takes part in training, evaluation and prediction.
_HOOKS = (
    "on_train_begin on_train_end on_test_begin on_test_end on_predict_begin on_predict_end on_epoch_begin on_epoch_end "
    "on_train_batch_begin on_train_batch_end on_test_batch_begin on_test_batch_end on_predict_batch_begin "
    "on_predict_batch_end"
).split()


class RankZero(keras.callbacks.Callback):
    """Runs another callback on rank 0 and nothing on the other ranks.

    You need it for callbacks that write or print: `TensorBoard`, `CSVLogger`, your own. The callback may call
    `model.evaluate` or `model.predict`; inside it metrics are those of rank 0. It must not change training (weights,
    rate, `stop_training`), because the other ranks would not follow.

    Args:
        callback: Any Keras callback.

    Example:

    ```python
    callbacks = [tfdist.callbacks.RankZero(keras.callbacks.CSVLogger("log.csv"))]
    ```
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        super().__init__()
        self.callback = callback
        self._active = tfdist.rank() == 0
        if not self._active:
            return
        for name in _HOOKS:
            setattr(self, name, self._forward(name))

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        if self._active:
            self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._hook = ModelHook.of(model)
        if self._active:
            self.callback.set_model(model)

    def _forward(self, name: str) -> Any:
        def forward(*args: Any, **kwargs: Any) -> None:
            with self._hook.local():
                getattr(self.callback, name)(*args, **kwargs)

        return forward
