"""Makes PyTorch's `GradScaler` look at the gradients of all ranks, for optimizers that are distributed."""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """Wraps what `GradScaler.unscale_` and `GradScaler.step` do. A second call does nothing.

    A scaler divides the gradients, and skips the step where one is infinite. While they are on their way it would see
    those of this rank alone, and change what is being sent. So all ranks reduce first, once a step, whatever the
    backward passes of each have been; a scaler looks at the gradients once between two calls of its `update`.
    """
    unscale: Any = torch.amp.GradScaler._unscale_grads_
    step: Any = torch.amp.GradScaler.step
    if hasattr(unscale, "__wrapped__"):
        return

    @functools.wraps(unscale)
    def of_all_ranks(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        reducer = getattr(optimizer, "_tfdist", None)
        if reducer is None:
            return unscale(self, optimizer, *args, **kwargs)
        reducer.before_unscaling([parameter for group in optimizer.param_groups for parameter in group["params"]])
        found = unscale(self, optimizer, *args, **kwargs)
        reducer.after_unscaling(found)
        return found

    @functools.wraps(step)
    def step_of_all(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, optimizer, *args, **kwargs)
        finally:
            if (reducer := getattr(optimizer, "_tfdist", None)) is not None:
                reducer.after_scaler()

    torch.amp.GradScaler._unscale_grads_ = of_all_ranks
    torch.amp.GradScaler.step = step_of_all
