"""Creates the weights that Keras would create in the first step of a model, before that step. Not a callback.

Keras builds a layer on its first call. A model without `call`, such as a GAN, never counts as built, though all its
layers may be; only its `train_step` shows what is missing, so it is traced: no step runs, no batch is drawn, and new
weights get the values that the first step would have given them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import errors
from tfdist.native import keras_version
from tfdist.ops.graph import replica
from tfdist.ops.object import allgather_object
from tfdist.training import model_optimizer
from tfdist.world import runtime

_NAMED = 5


class Building:
    """Actions that wait for the weights of one model in a `fit`.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._actions: list[Callable[[], None]] = []
        self._fit: Any = None

    def then(self, action: Callable[[], None]) -> None:
        """Runs an action now, or before the first step if any rank has yet to create weights; every rank must call it.

        Raises:
            ConfigError: On every rank, if one has several replicas.
        """
        model = self._model
        complete, problem = is_complete(model), replica.problem_of(model.distribute_strategy)
        if runtime.size() > 1:
            by_rank = allgather_object((complete, problem), name="models that are built")
            complete = all(of_rank for of_rank, _ in by_rank)
            _raise_together([problem for _, problem in by_rank])
        if complete:
            action()
            if not model.built and not isinstance(model.train_function, _FirstStep):
                model.train_function = _FirstStep(model, self)  # its step may make weights of which nothing is known
            return
        if self._fit is not model.history:  # Keras makes one for each fit; an earlier one may have ended by an error
            self._fit, self._actions = model.history, []
        self._actions.append(action)
        model.train_function = _FirstStep(model, self)

    def end(self, element_spec: Any) -> None:
        """Creates the missing weights, and runs the actions that wait for them."""
        if not self._actions or self._fit is not self._model.history:
            return
        actions, self._actions = self._actions, []
        failure = None
        try:
            make_weights(self._model, element_spec)
        except errors.ConfigError as error:
            failure = error
        problem = None if failure is None else str(failure)
        problems = allgather_object(problem, name="weights are made") if runtime.size() > 1 else [problem]
        if failure is not None:
            raise failure
        _raise_together(problems)
        for action in actions:
            action()


class _FirstStep:
    """Stands in for a train function until the first step, which must not create weights."""

    def __init__(self, model: keras.Model, building: Building) -> None:
        self.train_function = model.train_function
        self._model = model
        self._building = building
        self._taken = False

    def __call__(self, iterator: Any) -> Any:
        model = self._model
        if model.train_function is self:
            model.train_function = self.train_function
        if self._taken:  # where another stand-in has this one inside
            return self.train_function(iterator)
        self._building.end(getattr(iterator, "element_spec", None))
        before = {id(weight) for weight in model.weights}
        try:
            logs = self.train_function(iterator)
        except Exception as error:
            self._refuse_late(before, error)
            raise
        self._refuse_late(before, None)
        self._taken = True
        return logs

    def _refuse_late(self, before: set[int], cause: Exception | None) -> None:
        late = [weight.path for weight in self._model.weights if id(weight) not in before]
        if late and runtime.size() > 1:
            raise errors.ConfigError(
                f"the first step of model {self._model.name!r} created {len(late)} weights ({_listed(late)}), so "
                "each rank started from its own values. Create them before fit, in __init__ or build of the layer."
            ) from cause


def is_complete(model: keras.Model) -> bool:
    """Whether the first step creates no weights, as far as can be determined without running it."""
    return bool(model.built or not keras_version.has_call(model)) and bool(model.weights) and not _unbuilt(model)


def make_weights(model: keras.Model, element_spec: Any) -> None:
    """Creates the weights that Keras would create in the first step of a model, without drawing a batch.

    Args:
        model: A compiled model.
        element_spec: The `element_spec` of the `tf.data.Dataset` it is trained on.

    Raises:
        ConfigError: If that fails; says what to do.
    """
    if is_complete(model):
        return
    own_step = keras_version.has_own_train_step(model)
    ways: list[Callable[[keras.Model, Any], None]] = [trace_step]
    if keras_version.has_call(model):
        # What a step of the model's own needs, only the step says; but one that runs eagerly may not be traceable.
        ways = [trace_step, _call] if own_step and not model.run_eagerly else [_call, trace_step]
    failures = []
    for way in ways:
        before = len(model.weights)
        try:
            way(model, element_spec)
        except errors.TfdistError:
            raise
        except Exception as error:  # noqa: BLE001  (the script's own code runs; what it raised is in the message)
            failures.append(error)
            if len(model.weights) > before:  # perhaps without values
                break
        else:
            if way is trace_step or not own_step or not _unbuilt(model):
                return
    raise _refusal(model, failures) from (failures[0] if failures else None)


def _refusal(model: keras.Model, failures: list[Exception]) -> errors.ConfigError:
    unbuilt = _listed([repr(layer.name) for layer in _unbuilt(model)])
    told = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in failures))
    return errors.ConfigError(
        f"model {model.name!r} creates weights only in its first step, and creating them earlier, so that all ranks "
        f"start equal, failed{f' ({told})' if told else ''}. Not built: {unbuilt or 'the model itself'}. Build it "
        "before fit: call the model, or each of these layers, on a batch, or use layer.build(input_shape)."
    )


def trace_step(model: keras.Model, element_spec: Any) -> None:
    """Traces as Keras does in the first step, but runs nothing. Keras' weights are created outside the trace."""

    def step(iterator: Any) -> Any:
        batch = tf.nest.map_structure(
            lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, iterator.get_next()
        )
        return model.distribute_strategy.run(model.train_step, args=(batch,))

    tf.function(step, autograph=False).get_concrete_function(tf.data.IteratorSpec(element_spec))


def build_optimizers(model: keras.Model, element_spec: Any) -> None:
    """Builds the optimizers of a built model that its first step would build.

    The compiled optimizer alone is built without a trace: Keras gives it all trainable variables.

    Args:
        model: A compiled model.
        element_spec: As for `make_weights`.

    Raises:
        ConfigError: If the step cannot be traced; names the optimizers.
    """
    model_optimizer.build_compiled(model)
    left = [path for path, each in model_optimizer.named_optimizers(model).items() if not each.built]
    if not left:
        return
    try:
        trace_step(model, element_spec)
    except errors.TfdistError:
        raise
    except Exception as error:
        raise errors.ConfigError(
            f"the optimizers {', '.join(left)} of model {model.name!r} are built in its first step, which could not "
            f"be traced in advance ({type(error).__name__}: {error}). Build each of them before fit, with the "
            "variables it updates: optimizer.build(variables)."
        ) from error


def _call(model: keras.Model, element_spec: Any) -> None:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
    model(tf.nest.map_structure(_symbolic, x))


def _symbolic(spec: Any) -> keras.KerasTensor:
    kinds = {"sparse": isinstance(spec, tf.SparseTensorSpec), "ragged": isinstance(spec, tf.RaggedTensorSpec)}
    ranks = {"ragged_rank": spec.ragged_rank} if kinds["ragged"] else {}
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name, **kinds, **ranks)


def _unbuilt(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in keras_version.layers_of(model) if not layer.built and keras_version.has_own_build(layer)]


def _raise_together(problems: list[str | None]) -> None:
    told = {rank: problem for rank, problem in enumerate(problems) if problem}
    if told:
        own = told.get(runtime.rank())
        raise errors.ConfigError(own or "; ".join(f"on rank {rank}: {problem}" for rank, problem in told.items()))


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
