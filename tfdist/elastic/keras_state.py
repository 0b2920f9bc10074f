"""Elastic states of Keras models and TensorFlow variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdist import errors
from tfdist.elastic.state import ObjectState
from tfdist.native import keras_version
from tfdist.ops.broadcast import broadcast_variables
from tfdist.ops.object import allgather_object, broadcast_object
from tfdist.training import adapted_state, model_optimizer, model_state, optimizer, random_state


class TensorFlowState(ObjectState):
    """A state of variables and Python objects, for a training loop of your own.

    Args:
        variables: `tf.Variable` or `keras.Variable`, in the same order and with the same shapes on every rank: those
            of the model and of its optimizer, which must be built. The states of seed generators, which are among
            `model.variables`, are saved and restored, but stay specific to each rank; a new process also starts from
            its own, advanced by the number of the commit.
        **values: As for `ObjectState`.

    Attributes:
        variables: The variables.

    Example:

    ```python
    state = tfdist.elastic.TensorFlowState([*model.weights, *optimizer.variables], step=0)
    ```
    """

    def __init__(self, variables: Sequence[Any], **values: Any) -> None:
        super().__init__(**values)
        self.variables = list(variables)
        self._kept_variables, self._spare = self._copies(), self._copies()
        self._keep()

    def _keep(self) -> None:
        # Not over the previous copy, which must stay intact, but into memory already allocated: ten times as fast.
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
        self._compare_layouts(root)
        broadcast_variables(model_state.shared(self.variables), root, name="variables of the state")
        super()._receive(root)

    def _compare_layouts(self, root: int) -> None:
        """Raises the same kind of error on every rank if the ranks have different variables."""
        by_rank = allgather_object(_layout(self._kept_variables), name="layout of the state")
        for rank, layout in enumerate(by_rank):
            if layout != by_rank[root]:
                raise errors.MismatchError(
                    f"the variables of the state differ between ranks: "
                    f"{self._first_difference(layout, by_rank[root], f'on rank {rank}', f'on rank {root}')}. Create "
                    "the same model and optimizer on every rank."
                )

    def _first_difference(self, one: list[str], other: list[str], here: str, there: str) -> str:
        pairs = list(itertools.zip_longest(one, other, fillvalue="missing"))
        number = next(number for number, (left, right) in enumerate(pairs) if left != right)
        name = _name_of(self.variables[number]) if number < len(self.variables) else "not in this state"
        return (
            f"the first difference is variable {number} ({name}): {pairs[number][0]} {here}, {pairs[number][1]} {there}"
        )

    def _kept_content(self) -> dict[str, Any]:
        return {**super()._kept_content(), "variables": self._kept_variables}

    def _adopt(self, content: dict[str, Any]) -> None:
        own, found = _layout(self._kept_variables), _layout(content["variables"])
        if found != own:
            raise errors.ConfigError(
                f"the {len(found)} variables in a commit of this job do not match the {len(own)} of the state: "
                f"{self._first_difference(found, own, 'in the commit', 'in the state')}. If the script was changed, "
                "start the job from scratch, with an empty --backup-dir."
            )
        super()._adopt(content)
        # Arrays read from a file are read-only, and the commit after the next writes into them.
        self._kept_variables = [np.array(variable) for variable in content["variables"]]
        for place, variable in enumerate(self.variables):
            if keras_version.is_seed_state(variable):  # may be that of another rank, which has drawn from it
                self._kept_variables[place] = random_state.folded(variable.numpy(), 0, self._commits)


def _layout(arrays: Sequence[Any]) -> list[str]:
    return [f"{array.dtype} {list(array.shape)}" for array in arrays]


def _name_of(variable: Any) -> str:
    """Keras' path includes the layer."""
    return str(getattr(variable, "path", variable.name))


class KerasState(TensorFlowState):
    """A state of a Keras model, its optimizers with their current learning rates, and Python objects.

    The optimizers are the compiled one and those found among the attributes of the model and its layers.

    Args:
        model: A built model.
        optimizer: One more optimizer, which the model does not hold; default none.
        **values: As for `ObjectState`, such as `epoch=0, batch=0`.

    Attributes:
        model: The model.
        optimizer: Its optimizer.

    Raises:
        ConfigError: If the model has no weights or no optimizer, or an optimizer holds state that differs by rank.

    Example:

    ```python
    model.compile(keras.optimizers.Adam(1e-3), loss="mse")
    state = tfdist.elastic.KerasState(model, epoch=0)
    ```
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None, **values: Any) -> None:
        self.model = model
        self._given = optimizer
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self._check(model)
        super().__init__(self._state_variables(), **values)

    def _optimizers(self) -> list[Any]:
        found = model_optimizer.optimizers_of(self.model)
        return found if self._given is None or any(each is self._given for each in found) else [self._given, *found]

    def _state_variables(self) -> list[Any]:
        return model_state.variables_of(self.model, self._optimizers())

    def _check(self, model: keras.Model) -> None:
        if not model.weights:
            raise errors.ConfigError(
                f"model {model.name!r} has no weights yet, so there is no state to keep. Build it first: "
                "model.build(input_shape), or call it on a batch."
            )
        optimizers = self._optimizers()
        if not optimizers:
            raise errors.ConfigError(
                f"model {model.name!r} has no optimizer. Compile it first, or pass optimizer=... to KerasState."
            )
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        if any(optimizer.state_of_rank(each) for each in optimizers) or model_optimizer.accumulates(model):
            raise errors.ConfigError(
                "elastic training does not support an optimizer that accumulates gradients over several steps or has "
                "local variables: the share of a lost rank would be lost, and the others would continue without it. "
                "Use larger batches instead of gradient_accumulation_steps or backward_passes_per_step."
            )

    def _keep(self) -> None:
        if len(self._state_variables()) != len(self.variables):
            late = [path for path, each in model_optimizer.named_optimizers(self.model).items() if each.built]
            raise errors.ConfigError(
                f"an optimizer of model {self.model.name!r} was built after the state was created, so earlier "
                "commits lack its variables. Build all optimizers first, each with the variables it updates: "
                f"{' and '.join(f'model.{path}.build(variables)' for path in late)}."
            )
        super()._keep()
        self._kept_factors = self._factors()

    def _put_back(self) -> None:
        # Before the variables, which may include the rate: scaling a restored rate would round it.
        self._scale(self._kept_factors)
        super()._put_back()
        adapted_state.follow_variables(self.model)

    def _receive(self, root: int) -> None:
        self._scale(broadcast_object(self._factors(), root, name="factors of the rates"))
        super()._receive(root)
        adapted_state.follow_variables(self.model)

    def _kept_content(self) -> dict[str, Any]:
        return {**super()._kept_content(), "factors": self._kept_factors}

    def _adopt(self, content: dict[str, Any]) -> None:
        super()._adopt(content)
        self._kept_factors = content["factors"]

    def _factors(self) -> list[float]:
        return [optimizer.learning_rate_scale(each) for each in self._optimizers()]

    def _scale(self, factors: list[float]) -> None:
        for each, factor in zip(self._optimizers(), factors, strict=True):
            model_state.set_rate_factor(each, factor)


TensorFlowKerasState = KerasState
