"""States of models and variables of TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdist import errors, optimizer
from tfdist.elastic.state import ObjectState
from tfdist.ops.broadcast import broadcast_variables
from tfdist.ops.object import broadcast_object


class TensorFlowState(ObjectState):
    """A state of variables and Python objects, for a training loop of your own.

    Args:
        variables: `tf.Variable` or `keras.Variable`, in the same order and of the same shapes on every rank: those of
            the model and of its optimizer, which must be built.
        **values: As for `ObjectState`.

    Attributes:
        variables: The variables.

    Example:

    ```python
    state = tfdist.elastic.TensorFlowState([*model.variables, *optimizer.variables], step=0)
    ```
    """

    def __init__(self, variables: Sequence[Any], **values: Any) -> None:
        super().__init__(**values)
        self.variables = list(variables)
        self._kept_variables, self._spare = self._copies(), self._copies()
        self._keep()

    def _keep(self) -> None:
        # Not in place, so that the copy before stays whole, but into memory that is there already: it takes a tenth of
        # the time.
        for copy, variable in zip(self._spare, self.variables, strict=True):
            np.copyto(copy, variable.numpy())
        super()._keep()
        self._kept_variables, self._spare = self._spare, self._kept_variables

    def _copies(self) -> list[Any]:
        return [np.array(variable.numpy()) for variable in self.variables]

    def _put_back(self) -> None:
        for variable, value in zip(self.variables, self._kept_variables, strict=True):
            variable.assign(value)
        super()._put_back()

    def _receive(self, root: int) -> None:
        broadcast_variables(self.variables, root, name="variables of the state")
        super()._receive(root)

    def _kept_content(self) -> dict[str, Any]:
        return {**super()._kept_content(), "variables": self._kept_variables}

    def _adopt(self, content: dict[str, Any]) -> None:
        shapes = [(variable.dtype, tuple(variable.shape)) for variable in self._kept_variables]
        found = [(variable.dtype, tuple(variable.shape)) for variable in content["variables"]]
        if found != shapes:
            raise errors.ConfigError(
                f"a commit of this job has {len(found)} variables, and the state {len(shapes)}, or their shapes or "
                "types differ: was the script changed? Start the job anew, without what is in --backup-dir."
            )
        super()._adopt(content)
        # What was read from a file may not be written to, as the next commit but one will.
        self._kept_variables = [np.array(variable) for variable in content["variables"]]


class KerasState(TensorFlowState):
    """A state of a Keras model, its optimizer with the rate that is in force, and Python objects.

    Args:
        model: A built model.
        optimizer: The optimizer; by default that of the compiled model.
        **values: As for `ObjectState`; such as `epoch=0, batch=0`.

    Attributes:
        model: The model.
        optimizer: Its optimizer.

    Raises:
        ConfigError: If the model has no weights yet or no optimizer, or ranks keep variables of their own.

    Example:

    ```python
    model.compile(keras.optimizers.Adam(1e-3), loss="mse")
    state = tfdist.elastic.KerasState(model, epoch=0)
    ```
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None, **values: Any) -> None:
        compiled: Any = getattr(model, "optimizer", None)
        self.model = model
        self.optimizer = compiled if optimizer is None else optimizer
        self._check(model)
        super().__init__([*model.weights, *self.optimizer.variables], **values)

    def _check(self, model: keras.Model) -> None:
        if not model.weights:
            raise errors.ConfigError(
                f"model {model.name!r} has no weights yet, so there is no state to keep. Build it first: "
                "model.build(input_shape), or call it on a batch."
            )
        if self.optimizer is None:
            raise errors.ConfigError(
                f"model {model.name!r} has no optimizer. Compile it first, or pass optimizer=... to KerasState."
            )
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        if optimizer.state_of_rank(self.optimizer):
            raise errors.ConfigError(
                "elastic training takes no optimizer that accumulates gradients over several steps or has local "
                "variables: what a lost rank has of them is lost, and the others would go on with a part. Use larger "
                "batches instead of gradient_accumulation_steps or backward_passes_per_step."
            )

    def _keep(self) -> None:
        super()._keep()
        self._kept_factor = optimizer.learning_rate_scale(self.optimizer)

    def _put_back(self) -> None:
        # Before the variables, of which the rate may be one: scaling it anew would round it.
        self._scale(self._kept_factor)
        super()._put_back()

    def _receive(self, root: int) -> None:
        factor = optimizer.learning_rate_scale(self.optimizer)
        self._scale(broadcast_object(factor, root, name="factor of the rate"))
        super()._receive(root)

    def _kept_content(self) -> dict[str, Any]:
        return {**super()._kept_content(), "factor": self._kept_factor}

    def _adopt(self, content: dict[str, Any]) -> None:
        super()._adopt(content)
        self._kept_factor = content["factor"]

    def _scale(self, factor: float) -> None:
        if factor != optimizer.learning_rate_scale(self.optimizer):
            optimizer.scale_learning_rate(self.optimizer, factor)


TensorFlowKerasState = KerasState
