"""The compiled functions of a model: they raise tfdist's errors instead of TensorFlow's, and do not wait for the end of
old iterators. Not a callback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfdist.ops.graph import failure
from tfdist.system import release


class StepFunction:
    """What `fit` or `evaluate` calls for one or more steps; delegates everything else to the wrapped function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self._iterators: list[Any] = []

    def __call__(self, iterator: Any) -> Any:
        if not any(each is iterator for each in self._iterators):
            self.release()
            self._iterators.append(iterator)
        try:
            return failure.translating(self.function, iterator)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """There are no more steps on the iterator of the last one, which is destroyed in a thread."""
        release.destroy_later(self._iterators)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def release_iterators(model: keras.Model, name: str) -> None:
    """A `fit` ("train_function") or `evaluate` ("test_function") of this model has taken its last step."""
    function = getattr(model, name, None)
    if isinstance(function, StepFunction):
        function.release()


def translate_errors(model: keras.Model) -> None:
    """From now on an error in a step of this model has the same class on all ranks and explains what happened."""
    for name in ("train_function", "test_function"):
        setattr(model, f"make_{name}", _making(model, name, getattr(model, f"make_{name}")))
        setattr(model, name, None)


def _making(model: keras.Model, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def make(force: bool = False) -> Any:
        fresh = force or getattr(model, name) is None
        original(force=force)
        if fresh:
            setattr(model, name, StepFunction(getattr(model, name)))
        return getattr(model, name)

    return make
