"""`DistributedOptimizer` around an optimizer of TensorFlow 1 (`tf.compat.v1.train`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import is_resource_variable

from tfdist import errors
from tfdist.ops.graph import session_graph
from tfdist.training.gradients import GradientReduction
from tfdist.training.local_variable import LocalVariables

GradientsAndVariables = Sequence[tuple[Any, Any]]


class SessionOptimizer(tf.compat.v1.train.Optimizer):
    """Reduces gradients over all ranks in `compute_gradients`; everything else is done by the optimizer inside.

    Args:
        optimizer: An optimizer of `tf.compat.v1.train`.
        name: Its name; default: that of the class, with "Distributed" before it.
        use_locking: As in TensorFlow.
        reduction: How gradients are reduced.
        passes: Steps whose gradients are added up on each rank for one update.
        average: Whether the update takes the mean of these, not their sum.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        name: str | None,
        use_locking: bool,
        reduction: GradientReduction,
        passes: int = 1,
        average: bool = False,
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise errors.ConfigError(f"backward_passes_per_step must be a number, 1 or more; received {passes!r}.")
        self._optimizer = optimizer
        self._reduction = reduction
        self._local = LocalVariables()
        self._passes = passes
        self._factor = 1.0 / passes if average else 1.0
        self._is_update: tf.Tensor | None = None  # with several passes: whether this one is the last of them

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable local to this rank; see `tfdist.DistributedOptimizer`."""
        self._local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> GradientsAndVariables:
        """As in TensorFlow, with the gradients of all ranks."""
        computed = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in computed], [variable for _, variable in computed]
        if self._passes > 1:
            reduced = self._reduce_sometimes(gradients, variables)
        else:
            reduced = self._reduce(gradients, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: GradientsAndVariables, global_step: Any = None, name: str | None = None
    ) -> tf.Operation:
        """As in TensorFlow; with `backward_passes_per_step` variables change in the last step of an update only, while
        `global_step` counts every step.
        """
        pairs = list(grads_and_vars)
        if self._is_update is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        gradients = [gradient for gradient, _ in pairs if gradient is not None]

        def apply() -> tf.Tensor:
            with tf.control_dependencies([self._optimizer.apply_gradients(pairs, name=name)]):
                return tf.constant(True)

        with tf.control_dependencies(gradients):
            applied = tf.cond(self._is_update, apply, lambda: tf.constant(False))
        if global_step is None:
            return applied.op
        with tf.control_dependencies([applied]):
            return tf.group(tf.compat.v1.assign_add(global_step, tf.ones_like(global_step)))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow."""
        return self._optimizer.variables(*args, **kwargs)

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        return self._reduction.reduce(gradients, variables, "gradients", self._local, self._factor)

    def _reduce_sometimes(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Adds gradients up, and reduces the sum in every so many steps; in the others it returns zeros."""
        self._refuse_what_does_not_count()
        present = [place for place, gradient in enumerate(gradients) if gradient is not None]
        _refuse_references([variables[place] for place in present])
        sums = [_sum_of(gradients[place], variables[place], self._reduction.sparse_as_dense) for place in present]
        count = _kept(tf.zeros((), tf.int64))
        added = [
            tf.identity(tf.compat.v1.assign_add(total, tf.convert_to_tensor(gradients[place])))
            for total, place in zip(sums, present, strict=True)
        ]
        with tf.control_dependencies(added):
            number = tf.identity(tf.compat.v1.assign_add(count, tf.ones_like(count)))
        self._is_update = tf.equal(number % self._passes, 0)

        def reduce() -> list[tf.Tensor]:
            reduced = self._reduce([tf.identity(total) for total in added], [variables[place] for place in present])
            with tf.control_dependencies(reduced):
                emptied = [tf.compat.v1.assign(total, tf.zeros_like(total)) for total in sums]
            with tf.control_dependencies(emptied):
                return [tf.identity(gradient) for gradient in reduced]

        updates = tf.cond(self._is_update, reduce, lambda: [tf.zeros_like(total) for total in added])
        result = list(gradients)
        for place, gradient in zip(present, updates if isinstance(updates, list) else [updates], strict=True):
            result[place] = gradient
        return result

    def _refuse_what_does_not_count(self) -> None:
        """Sums and their count are made with the graph, for one list of gradients."""
        if not session_graph.is_current():
            raise errors.ConfigError(
                "backward_passes_per_step with an optimizer of tf.compat.v1.train needs a graph that a session runs. "
                "In eager execution use an optimizer of Keras."
            )
        if self._is_update is not None and self._is_update.graph is tf.compat.v1.get_default_graph():
            raise errors.ConfigError(
                "with backward_passes_per_step an optimizer computes the gradients of one loss; compute_gradients was "
                "called twice in this graph. Make one for each loss."
            )


def _refuse_references(variables: list[Any]) -> None:
    """TensorFlow 2's `tf.cond` cannot pass them on, and says so in words about input types."""
    for variable in variables:
        if tf.compat.v1.control_flow_v2_enabled() and not is_resource_variable(variable):
            raise errors.ConfigError(
                f"backward_passes_per_step needs resource variables; {variable.name} has use_resource=False. Leave "
                "that out, or call tf.compat.v1.disable_v2_behavior() at the start of the script."
            )


def _sum_of(gradient: Any, variable: Any, sparse_as_dense: bool) -> tf.Variable:
    if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
        raise errors.ConfigError(
            f"backward_passes_per_step adds up dense gradients; that of {variable.name} is a tf.IndexedSlices. Pass "
            "sparse_as_dense=True."
        )
    return _kept(tf.zeros(variable.shape, variable.dtype.base_dtype))


def _kept(value: tf.Tensor) -> tf.Variable:
    """A variable of this rank, which neither checkpoints nor the broadcast contain."""
    local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    return tf.compat.v1.Variable(value, trainable=False, collections=local, name="tfdist_sum")
