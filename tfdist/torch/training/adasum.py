"""Steps whose changes are combined by Adasum: each rank takes its own step, and all go on from the combined change."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.ops.reduction import Adasum, Max
from tfdist.torch.collective.allreduce import grouped_allreduce, grouped_allreduce_
from tfdist.torch.collective.object import allgather_object
from tfdist.torch.training.drift import Drift
from tfdist.torch.training.gradient_plan import Named, check_plans, refuse_strangers
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
        drift: Compares the parameters of the ranks.
    """

    def __init__(
        self, named: Sequence[Named], label: str, compression: Any, process_set: ProcessSet, drift: Drift
    ) -> None:
        self._named, self._label, self._drift = named, label, drift
        self._compression, self._process_set = compression, process_set
        self._before: list[torch.Tensor] = []
        self._compared = False

    def before_step(self, parameters: Sequence[torch.Tensor]) -> None:
        """Remembers where the step begins. Before the first one the ranks compare their parameters."""
        refuse_strangers(parameters, {id(named.parameter) for named in self._named})
        if not self._compared:
            plan = [[named.outline() for named in self._named]]
            told = allgather_object((plan, self._drift.digests()), f"{self._label} plan", self._process_set)
            plans, digests = zip(*told, strict=True)  # of the ranks that have not joined
            check_plans(plans, [rank for rank, *_ in digests], self._label)
            self._drift.before_first_step(digests)
            self._compared = True
        if not self._before:  # a closure may be called several times in a step
            self._before = [named.parameter.detach().clone() for named in self._named]

    def after_step(self) -> None:
        """Combines the changes of all ranks, and applies them."""
        if not self._before:  # the optimizer has not called the closure
            return
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
        self._drift.after_step()

    def loss_of_all(self, loss: Any) -> Any:
        """What a closure has returned: each rank takes a step of its own."""
        return loss

    def begin_anew(self) -> None:
        """The ranks have changed: a step that was interrupted has begun nowhere, and new ones have compared nothing."""
        self._before, self._compared = [], False
        self._drift.begin_anew()

    def before_unscaling(self, parameters: Sequence[torch.Tensor]) -> None:
        """Gradients are those of this rank."""

    def after_unscaling(self, found: dict[torch.device, torch.Tensor]) -> None:
        """Makes what a `GradScaler` has found by device, 1.0 where a gradient is infinite, that of all ranks.

        A rank without gradients has found nothing, and takes part.
        """
        for device in {named.parameter.device for named in self._named}:
            found.setdefault(device, torch.zeros((), device=device))
        flags = [found[device] for device in sorted(found, key=str)]
        grouped_allreduce_(flags, name=f"{self._label} infinite", op=Max, process_set=self._process_set)

    def after_scaler(self) -> None:
        """Nothing was waited for."""

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

    def discard(self) -> None:
        """Nothing is known of gradients."""

    def is_under_way(self) -> bool:
        """Whether gradients are being reduced: never."""
        return False
