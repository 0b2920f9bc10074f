"""Runs any Keras callback on rank 0 only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

import tfdist
from tfdist import errors
from tfdist.callbacks.fit.model_hook import ModelHook

# Every hook of a Keras callback that takes part in training, evaluation and prediction.
_HOOKS = (
    "on_train_begin on_train_end on_test_begin on_test_end on_predict_begin on_predict_end on_epoch_begin on_epoch_end "
    "on_train_batch_begin on_train_batch_end on_test_batch_begin on_test_batch_end on_predict_batch_begin "
    "on_predict_batch_end"
).split()


class RankZero(keras.callbacks.Callback):
    """Runs another callback on rank 0 and nothing on the other ranks.

    You need it for callbacks that write or print: `TensorBoard`, `CSVLogger`, your own. The callback may call
    `model.evaluate` or `model.predict`; inside it, metrics cover rank 0 only. It must not affect training (weights,
    learning rate, `stop_training`), because the other ranks would not follow.

    If the callback acts when it is constructed, such as one that logs in to an experiment tracker, pass a function that
    returns it: only rank 0 calls the function, immediately. If it raises, rank 0's script ends with that error,
    `tfdistrun` ends the other ranks, and its summary shows the error. One that was sent from another process, as in the
    `callbacks` of an Estimator, decides where it is first used, and rank 0 calls the function then.

    Args:
        callback: Any Keras callback, or a function without arguments that returns one.

    Attributes:
        callback: The callback; None on ranks where it was not made.

    Raises:
        ConfigError: If `callback` is neither; on rank 0 also if the function returns anything else.

    Example:

    ```python
    callbacks = [
        tfdist.callbacks.RankZero(keras.callbacks.CSVLogger("log.csv")),
        tfdist.callbacks.RankZero(lambda: keras.callbacks.TensorBoard("logs")),
    ]
    ```
    """

    callback: keras.callbacks.Callback | None

    _differs_by_rank = True

    def __init__(self, callback: keras.callbacks.Callback | Callable[[], keras.callbacks.Callback]) -> None:
        super().__init__()
        if not callable(callback) and not isinstance(callback, keras.callbacks.Callback):
            raise errors.ConfigError(f"RankZero takes a Keras callback or a function that makes one; {_got(callback)}.")
        self._given: Any = callback
        self._decide()

    def _decide(self) -> None:
        """Whether this is rank 0."""
        self._active: bool | None = tfdist.rank() == 0
        self.callback = self._given if isinstance(self._given, keras.callbacks.Callback) else None
        if self._active:
            self.callback = self.callback or _made_by(self._given)
            for name in _HOOKS:
                setattr(self, name, self._forward(name))

    def __getstate__(self) -> dict[str, Any]:
        """What another process decides, or this one anew: which rank it is, and whether it calls the function."""
        kept = {name: value for name, value in vars(self).items() if name not in (*_HOOKS, "_hook")}
        given = self._given if isinstance(self._given, keras.callbacks.Callback) else None
        return kept | {"_active": None, "_model": None, "callback": given}

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        if self._active is None:
            self._decide()
        if self._active and self.callback is not None:
            self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if self._active is None:
            self._decide()
        self._hook = ModelHook.of(model)
        if self._active and self.callback is not None:
            self.callback.set_model(model)

    def _forward(self, name: str) -> Any:
        def forward(*args: Any, **kwargs: Any) -> None:
            with self._hook.local():
                getattr(self.callback, name)(*args, **kwargs)

        return forward


def _made_by(factory: Callable[[], keras.callbacks.Callback]) -> keras.callbacks.Callback:
    made: Any = factory()
    if not isinstance(made, keras.callbacks.Callback):
        raise errors.ConfigError(f"the function that RankZero takes must return a Keras callback; {_got(made)}.")
    return made


def _got(value: Any) -> str:
    return f"received {value!r} ({type(value).__name__})"
