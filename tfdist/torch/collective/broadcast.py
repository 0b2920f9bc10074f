"""Broadcast: every rank gets the tensors of one rank."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tfdist.native import collective
from tfdist.ops.graph import gradient_factor
from tfdist.ops.reduction import Sum
from tfdist.torch.collective import tensor as tensors_of_torch
from tfdist.torch.collective.allreduce import allreduce
from tfdist.torch.collective.handle import label_of, register, synchronize
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the tensor of rank `root_rank` on every rank; has a gradient.

    Args:
        tensor: Tensor of any supported dtype; dtype and shape are the same on every rank.
        root_rank: The rank whose tensor is wanted, by its number among all ranks.
        name: Same on every rank. Without one, all ranks call unnamed collectives in the same order.
        process_set: The ranks that take part.

    Raises:
        MismatchError: On every rank, if dtype, shape or root differs.

    Example:

    ```python
    order = hvd.broadcast(torch.randperm(100), root_rank=0, name="order")
    ```
    """
    received: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return received


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As `broadcast`, but the tensor itself gets the values, and is returned. Has no gradient.

    Args:
        tensor: As in `broadcast`; may be a leaf that requires a gradient.
        root_rank: As in `broadcast`.
        name: As in `broadcast`.
        process_set: The ranks that take part.
    """
    received: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return received


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `broadcast`, without a gradient; returns a handle for `poll` and `synchronize`.

    Args:
        tensor: As in `broadcast`; must not change before `synchronize`.
        root_rank: As in `broadcast`.
        name: As in `broadcast`; not that of a collective that has not ended.
        process_set: The ranks that take part.
    """
    label, number = label_of(name, process_set)
    return _start([tensor], [label], root_rank, (label, number), in_place=False)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `broadcast_`; returns a handle for `poll` and `synchronize`.

    Args:
        tensor: As in `broadcast_`; must not be used before `synchronize`.
        root_rank: As in `broadcast`.
        name: As in `broadcast_async`.
        process_set: The ranks that take part.
    """
    label, number = label_of(name, process_set)
    tensors_of_torch.will_change([tensor], [label])
    return _start([tensor], [label], root_rank, (label, number), in_place=True)


def overwrite(
    tensors: Sequence[torch.Tensor], names: Sequence[str], root_rank: int, label: str, process_set: ProcessSet
) -> None:
    """Overwrites tensors with the values of rank `root_rank`, in one collective.

    Args:
        tensors: Tensors as in `broadcast_`.
        names: One per tensor, for errors; same on every rank.
        root_rank: As in `broadcast`.
        label: The name of the collective.
        process_set: The ranks that take part.
    """
    if tensors:
        call = label_of(label, process_set)
        tensors_of_torch.will_change(tensors, names)
        synchronize(_start(tensors, names, root_rank, call, in_place=True, finish=list))


def _start(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str],
    root_rank: int,
    call: tuple[str, int],
    in_place: bool,
    finish: Callable[[list[torch.Tensor]], Any] = lambda received: received[0],
) -> int:
    gpu = tensors_of_torch.gpu_of(tensors)
    sent = [tensors_of_torch.ready(tensor, name, gpu) for tensor, name in zip(tensors, names, strict=True)]
    outputs = [
        torch.empty_like(each) if each.data_ptr() == tensor.data_ptr() and not in_place else each
        for each, tensor in zip(sent, tensors, strict=True)
    ]
    described = list(map(tensors_of_torch.described, names, sent, outputs))
    started = collective.broadcast(collective.Call(*call, described, gpu), operator.index(root_rank))

    def results() -> Any:
        if not in_place:
            return finish([output.to(tensor.device) for output, tensor in zip(outputs, tensors, strict=True)])
        for output, tensor in zip(outputs, tensors, strict=True):
            if output.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
                tensor.detach().copy_(output)
        return finish(list(tensors))

    return register([started], (sent, outputs), results)


class _Broadcast(torch.autograd.Function):
    """The root's tensor fed every rank; the others' fed none."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        label, number = label_of(name, process_set)
        ctx.root_rank, ctx.label, ctx.process_set = root_rank, label, process_set
        received: torch.Tensor = synchronize(_start([tensor], [label], root_rank, (label, number), in_place=False))
        return received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        factor = gradient_factor.of_average("broadcast", ctx.process_set)
        label = f"gradient of {ctx.label}"
        summed = allreduce(gradient, op=Sum, postscale_factor=factor, name=label, process_set=ctx.process_set)
        is_root = runtime.rank() == ctx.root_rank
        return (summed if is_root else torch.zeros_like(summed)), None, None, None
