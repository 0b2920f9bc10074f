"""Checks that only the compiled optimizer trains a model. Not a callback."""

from __future__ import annotations

import keras

from tfdist import errors
from tfdist.training import model_optimizer

RATES_REMEDY = (
    "DataParallel(warmup_epochs=...) scales and warms up all of them; set any other rate in your own callback."
)


class CompiledOptimizer:
    """Detects updates by other optimizers of a model, which a callback for the compiled one does not cover.

    Args:
        what: What the callback does, for the error.
        remedy: What to write instead.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self._what, self._remedy = what, remedy

    def begin(self, model: keras.Model) -> None:
        """A `fit` begins."""
        self._before = {path: _updates(each) for path, each in model_optimizer.named_optimizers(model).items()}

    def check(self, model: keras.Model) -> None:
        """An epoch has ended.

        Raises:
            ConfigError: If another optimizer of the model has made updates.
        """
        for path, each in model_optimizer.named_optimizers(model).items():
            if each is not model.optimizer and _updates(each) > self._before.get(path, 0):
                raise errors.ConfigError(
                    f"{self._what} of the optimizer that model {model.name!r} was compiled with, and the model is also "
                    f"trained by {path} ({type(each).__name__}). {self._remedy}"
                )


def _updates(optimizer: keras.optimizers.Optimizer) -> int:
    return int(keras.ops.convert_to_numpy(optimizer.iterations))
