"""Horovod's names for elastic training with TensorFlow, as `hvd.elastic`. Only signatures; the rest is inherited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfdist import elastic, errors
from tfdist.elastic import run

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(elastic.TensorFlowState):
    """`tfdist.elastic.TensorFlowState`, with Horovod's argument order.

    Args:
        variables: As in `tfdist.elastic.TensorFlowState`. Required: TensorFlow 2 has no list of all variables.
        session: Only None.
        **values: As in `tfdist.elastic.TensorFlowState`.

    Raises:
        ConfigError: If there are no variables, or a session is given.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: None = None, **values: Any) -> None:
        _refuse_session(session=session)
        if not variables:
            raise errors.ConfigError(
                f"TensorFlowState needs the variables to keep; received {variables!r}. TensorFlow 2 has no list of "
                "all variables, so pass them: TensorFlowState([*model.weights, *optimizer.variables])."
            )
        super().__init__(variables, **values)


class TensorFlowKerasState(elastic.KerasState):
    """`tfdist.elastic.KerasState`, with Horovod's argument order for TensorFlow.

    Args:
        model: As in `tfdist.elastic.KerasState`.
        optimizer: As in `tfdist.elastic.KerasState`.
        backend: Must be None: Horovod takes the session of TensorFlow 1 from it.
        **values: As in `tfdist.elastic.KerasState`.

    Raises:
        ConfigError: If a backend is given, or as in `tfdist.elastic.KerasState`.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
        backend: None = None,
        **values: Any,
    ) -> None:
        _refuse_session(backend=backend)
        super().__init__(model, optimizer, **values)


def _refuse_session(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise errors.ConfigError(f"{name}= is not supported: TensorFlow 2 has no sessions. Omit it.")
