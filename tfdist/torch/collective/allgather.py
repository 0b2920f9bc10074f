"""Allgather: every rank gets the concatenated tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tfdist.native import collective
from tfdist.ops.graph import gradient_factor
from tfdist.ops.reduction import Sum
from tfdist.torch.collective import tensor as tensors_of_torch
from tfdist.torch.collective.allreduce import grouped_allreduce
from tfdist.torch.collective.handle import label_of, register, synchronize
from tfdist.world.process_sets import ProcessSet, global_process_set


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in the order of the ranks; has a gradient.

    Args:
        tensor: Tensor of any supported dtype; dimension 0 may differ by rank, the others may not. A scalar counts as
            one row.
        name: Same on every rank. Without one, all ranks call unnamed collectives in the same order.
        process_set: The ranks that take part.

    Raises:
        MismatchError: On every rank, if dtype, number of dimensions or another dimension than the first differs.

    Example:

    ```python
    predictions = hvd.allgather(predictions, name="predictions")
    ```
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Concatenates several tensors of all ranks in one collective, as `allgather`.

    Args:
        tensors: Tensors as in `allgather`; may differ in dtype and shape from each other.
        name: As in `allgather`.
        process_set: The ranks that take part.

    Returns:
        List in the order of `tensors`.
    """
    if not tensors:
        return []
    return list(_Allgather.apply(name, process_set, *tensors))


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts an `allgather`, without a gradient; returns a handle for `poll` and `synchronize`.

    Args:
        tensor: As in `allgather`; must not change before `synchronize`.
        name: As in `allgather`; not that of a collective that has not ended.
        process_set: The ranks that take part.
    """
    label, number = label_of(name, process_set)
    return _start([tensor], label, number, lambda gathered: gathered[0][0])


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a `grouped_allgather`, without a gradient; returns a handle for `poll` and `synchronize`.

    Args:
        tensors: As in `grouped_allgather`; must not change before `synchronize`.
        name: As in `allgather_async`.
        process_set: The ranks that take part.
    """
    label, number = label_of(name, process_set)
    return _start(tensors, label, number, lambda gathered: gathered[0])


def gather_rows(
    tensor: torch.Tensor, name: str, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, list[int]]:
    """The rows of all ranks, and how many each gave: 0 for one that has joined.

    Args:
        tensor: As in `allgather`.
        name: As in `allgather`.
        process_set: The ranks that take part.
    """
    label, number = label_of(name, process_set)
    (gathered,), rows = synchronize(_start([tensor], label, number, tuple))
    return gathered, rows.tolist()


def _start(tensors: Sequence[torch.Tensor], label: str, process_set: int, finish: Any) -> int:
    """`finish` takes the list of results, and the rows by tensor and rank."""
    names = tensors_of_torch.names_of(tensors, label)
    hosts = [tensors_of_torch.ready(tensor, name) for tensor, name in zip(tensors, names, strict=True)]
    described = [tensors_of_torch.described(name, host) for name, host in zip(names, hosts, strict=True)]
    started = collective.allgather(collective.Call(label, process_set, described))

    def results() -> Any:
        gathered = [
            tensors_of_torch.result(started, index, host, tensor.device)
            for index, (host, tensor) in enumerate(zip(hosts, tensors, strict=True))
        ]
        return finish((gathered, tensors_of_torch.result(started, len(hosts), torch.empty(0, dtype=torch.int64))))

    return register([started], hosts, results)


class _Allgather(torch.autograd.Function):
    """This rank's rows fed every rank."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        label, number = label_of(name, process_set)
        gathered, rows = synchronize(_start(tensors, label, number, tuple))
        ctx.label, ctx.process_set = label, process_set
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.rows = rows.view(len(tensors), -1).tolist()
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        factor = gradient_factor.of_average("allgather", ctx.process_set)
        places = [place for place, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        summed = grouped_allreduce(
            [gradients[place] for place in places],
            op=Sum,
            postscale_factor=factor,
            name=f"gradient of {ctx.label}",
            process_set=ctx.process_set,
        )
        results: list[torch.Tensor | None] = [None] * len(gradients)
        for place, whole in zip(places, summed, strict=True):
            rows, own = ctx.rows[place], ctx.process_set.rank()
            first = sum(rows[:own])
            results[place] = whole[first : first + rows[own]].reshape(ctx.shapes[place])
        return None, None, *results
