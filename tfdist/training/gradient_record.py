"""What happened to a variable's gradient: the ranks it was reduced over, or that it stayed local.

Written when gradients are reduced, which for a `tf.function` is when it is traced; so it describes the reduction of the
latest traced step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.world.process_sets import ProcessSet

_ATTRIBUTE = "_tfdist_gradient"


@dataclass(frozen=True)
class GradientRecord:
    """The record of one variable.

    Attributes:
        process_set: The ranks whose gradients were reduced; None if each rank keeps its own.
    """

    process_set: ProcessSet | None


def write(source: Any, process_set: ProcessSet | None) -> None:
    """Records it for a variable; a tensor, which is gone after the step, has no record."""
    variable = _inner(source)
    if isinstance(variable, tf.Variable):
        setattr(variable, _ATTRIBUTE, GradientRecord(process_set))


def read(source: Any) -> GradientRecord | None:
    """The latest record of a variable; None if no gradient of it was ever reduced or kept local."""
    record: GradientRecord | None = getattr(_inner(source), _ATTRIBUTE, None)
    return record


def _inner(source: Any) -> Any:
    return source.value if isinstance(source, keras.Variable) else source
