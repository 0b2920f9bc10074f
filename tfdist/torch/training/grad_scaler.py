"""Makes PyTorch's `GradScaler` look at the gradients of all ranks, for optimizers that are distributed."""

from __future__ import annotations

from typing import Any

import torch

from tfdist.torch.training.adasum import AdasumSteps


def install() -> None:
    """Wraps what `GradScaler.unscale_` and `GradScaler.step` do first. A second call does nothing.

    A scaler divides the gradients, and skips the step where one is infinite. While they are on their way it would see
    those of this rank alone, and change what is being sent.
    """
    original: Any = torch.amp.GradScaler._unscale_grads_
    if hasattr(original, "__wrapped__"):
        return

    def of_all_ranks(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        reducer = getattr(optimizer, "_tfdist", None)
        if reducer is not None and reducer.has_gradients():
            reducer.synchronize_for_scaler()
        found = original(self, optimizer, *args, **kwargs)
        if isinstance(reducer, AdasumSteps):  # whose gradients are those of this rank
            reducer.infinite_anywhere(found)
        return found

    of_all_ranks.__wrapped__ = original  # type: ignore[attr-defined]
    torch.amp.GradScaler._unscale_grads_ = of_all_ranks
