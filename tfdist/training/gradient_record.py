"""What became of a variable's gradient: the ranks it was reduced over, or that it stayed on its rank.

Written where gradients are reduced, which for a `tf.function` is when it is traced; so it names the reduction of the
newest step that was made.
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
    """Of one variable.

    Attributes:
        process_set: The ranks whose gradients were reduced; None where each rank keeps its own.
    """

    process_set: ProcessSet | None


def write(source: Any, process_set: ProcessSet | None) -> None:
    """Notes it for a variable; a tensor, which is gone after the step, has no record."""
    variable = _inner(source)
    if isinstance(variable, tf.Variable):
        setattr(variable, _ATTRIBUTE, GradientRecord(process_set))


def read(source: Any) -> GradientRecord | None:
    """The newest record of a variable; None where no gradient of it was ever reduced, or kept as its rank's own."""
    record: GradientRecord | None = getattr(_inner(source), _ATTRIBUTE, None)
    return record


def _inner(source: Any) -> Any:
    return source.value if isinstance(source, keras.Variable) else source
