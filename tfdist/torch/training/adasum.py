"""Steps whose changes are combined by Adasum: each rank takes its own step, and all go on from the combined change."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.ops.reduction import Adasum
from tfdist.torch.collective.allreduce import grouped_allreduce
from tfdist.torch.training.gradient_plan import Named
from tfdist.world.process_sets import ProcessSet


class AdasumSteps:
    """What `DistributedOptimizer` with `op=Adasum` does around each step of an optimizer.

    Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020), section 3: of the changes of the
    parameters, not of their gradients, so that it works with any optimizer.

    Args:
        named: The parameters.
        label: The name of the optimizer.
        compression: As of `DistributedOptimizer`.
        process_set: The ranks that take part.
    """

    def __init__(self, named: Sequence[Named], label: str, compression: Any, process_set: ProcessSet) -> None:
        self._named, self._label = named, label
        self._compression, self._process_set = compression, process_set
        self._before: list[torch.Tensor] = []

    def before_step(self, _: Sequence[torch.Tensor]) -> None:
        """Remembers where the step begins."""
        if not self._before:  # a closure may be called several times in a step
            self._before = [named.parameter.detach().clone() for named in self._named]

    def after_step(self) -> None:
        """Combines the changes of all ranks, and applies them."""
        with torch.no_grad():
            changes = [named.parameter - old for named, old in zip(self._named, self._before, strict=True)]
            combined = grouped_allreduce(
                changes,
                name=f"{self._label} changes",
                compression=self._compression,
                op=Adasum,
                process_set=self._process_set,
            )
            for named, old, change in zip(self._named, self._before, combined, strict=True):
                named.parameter.copy_(old + change)
        self._before = []

    def begin_anew(self) -> None:
        """The ranks have changed: a step that was interrupted has begun nowhere."""
        self._before = []

    def synchronize(self) -> None:
        """Nothing is under way between two steps."""

    def skipping(self) -> contextlib.AbstractContextManager[None]:
        """Refuses.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("skip_synchronize() is not possible with op=Adasum: it reduces what the step has changed.")

    def set_passes(self, passes: int) -> None:
        """Any number will do: only the step counts."""

    def has_gradients(self) -> bool:
        """Whether a `GradScaler` has gradients to wait for: never."""
        return False

    def is_under_way(self) -> bool:
        """Whether gradients are being reduced: never."""
        return False
