"""States of models and variables of TensorFlow."""

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
        variables: `tf.Variable` or `keras.Variable`, in the same order and of the same shapes on every rank: those of
            the model and of its optimizer, which must be built. States of seed generators, which are among
            `model.variables`, are kept and put back, and stay each rank's own; a new process begins with its own too,
            moved on by the commit.
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
        self._compare_layouts(root)
        broadcast_variables(model_state.shared(self.variables), root, name="variables of the state")
        super()._receive(root)

    def _compare_layouts(self, root: int) -> None:
        """Raises the same kind of error on every rank where the ranks have not made the same variables."""
        by_rank = allgather_object(_layout(self._kept_variables), name="layout of the state")
        for rank, layout in enumerate(by_rank):
            if layout != by_rank[root]:
                raise errors.MismatchError(
                    f"the variables of the state differ between the ranks: "
                    f"{self._first_difference(layout, by_rank[root], f'on rank {rank}', f'on rank {root}')}. Make the "
                    "same model and optimizer on every rank."
                )

    def _first_difference(self, one: list[str], other: list[str], here: str, there: str) -> str:
        pairs = list(itertools.zip_longest(one, other, fillvalue="missing"))
        number = next(number for number, (left, right) in enumerate(pairs) if left != right)
        name = _name_of(self.variables[number]) if number < len(self.variables) else "not of this state"
        return f"the first is number {number} ({name}), {pairs[number][0]} {here} and {pairs[number][1]} {there}"

    def _kept_content(self) -> dict[str, Any]:
        return {**super()._kept_content(), "variables": self._kept_variables}

    def _adopt(self, content: dict[str, Any]) -> None:
        own, found = _layout(self._kept_variables), _layout(content["variables"])
        if found != own:
            raise errors.ConfigError(
                f"the {len(found)} variables of a commit of this job are not the {len(own)} of the state: "
                f"{self._first_difference(found, own, 'in the commit', 'in the state')}. Was the script changed? Start "
                "the job anew, without what is in --backup-dir."
            )
        super()._adopt(content)
        # What was read from a file may not be written to, as the next commit but one will.
        self._kept_variables = [np.array(variable) for variable in content["variables"]]
        for place, variable in enumerate(self.variables):
            if keras_version.is_seed_state(variable):  # another rank may have written it, and have drawn from it
                self._kept_variables[place] = random_state.folded(variable.numpy(), 0, self._commits)


def _layout(arrays: Sequence[Any]) -> list[str]:
    return [f"{array.dtype} {list(array.shape)}" for array in arrays]


def _name_of(variable: Any) -> str:
    """That of Keras says in which layer it is."""
    return str(getattr(variable, "path", variable.name))


class KerasState(TensorFlowState):
    """A state of a Keras model, its optimizers with the rates that are in force, and Python objects.

    The optimizers are the compiled one and those found among the attributes of the model and of the layers in it.

    Args:
        model: A built model.
        optimizer: One more optimizer, which the model does not hold; by default there is none.
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
                "elastic training takes no optimizer that accumulates gradients over several steps or has local "
                "variables: what a lost rank has of them is lost, and the others would go on with a part. Use larger "
                "batches instead of gradient_accumulation_steps or backward_passes_per_step."
            )

    def _keep(self) -> None:
        if len(self._state_variables()) != len(self.variables):
            late = [path for path, each in model_optimizer.named_optimizers(self.model).items() if each.built]
            raise errors.ConfigError(
                f"an optimizer of model {self.model.name!r} was built after the state was made, so the commits before "
                "do not have its variables. Build all of them first, each with the variables it updates: "
                f"{' and '.join(f'model.{path}.build(variables)' for path in late)}."
            )
        super()._keep()
        self._kept_factors = self._factors()

    def _put_back(self) -> None:
        # Before the variables, of which the rate may be one: scaling it anew would round it.
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
