"""Alltoall: every rank sends some of its rows to each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.native import collective
from tfdist.torch.collective import tensor as tensors_of_torch
from tfdist.torch.collective.handle import label_of, register, synchronize
from tfdist.world.process_sets import ProcessSet, global_process_set


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends rows to each rank, and returns those that came, in the order of the ranks; has a gradient.

    Args:
        tensor: Tensor of any supported dtype with at least one dimension; all but the first are the same on every rank.
        splits: How many rows go to each rank of the set, in their order: a tensor of integers or a sequence. None:
            equally many.
        name: Same on every rank. Without one, all ranks call unnamed collectives in the same order.
        process_set: The ranks that take part.

    Returns:
        The rows; with `splits` a pair of them and how many came from each rank, as int32 where `splits` is.

    Raises:
        ConfigError: On every rank, if the splits of one do not add up to its rows.
        MismatchError: On every rank, if dtype or another dimension than the first differs.

    Example:

    ```python
    mine, came = hvd.alltoall(rows, splits=[2, 0, 5], name="rows")
    ```
    """
    given = None if splits is None else tuple(_numbers(splits))
    received, came = _Alltoall.apply(tensor, given, name, process_set)
    return received if splits is None else (received, _like(came, splits))


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `alltoall`, without a gradient; returns a handle for `poll` and `synchronize`.

    Args:
        tensor: As in `alltoall`; must not change before `synchronize`.
        splits: As in `alltoall`.
        name: As in `alltoall`; not that of a collective that has not ended.
        process_set: The ranks that take part.
    """
    label, number = label_of(name, process_set)
    given = () if splits is None else _numbers(splits)

    def finish(received: torch.Tensor, came: torch.Tensor) -> Any:
        return received if splits is None else (received, _like(came, splits))

    return _start(tensor, given, (label, number), finish)


def _numbers(splits: torch.Tensor | Sequence[int]) -> list[int]:
    tensor = torch.as_tensor(splits)
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool or not tensor.numel():
        raise ConfigError(
            f"alltoall received splits {splits!r}; expected one integer for each rank: how many rows go to it."
        )
    return [int(number) for number in tensor.tolist()]


def _like(came: torch.Tensor, splits: torch.Tensor | Sequence[int]) -> torch.Tensor:
    if not isinstance(splits, torch.Tensor):
        return came
    return came.to(device=splits.device, dtype=splits.dtype)


def _start(
    tensor: torch.Tensor,
    splits: Sequence[int],
    call: tuple[str, int],
    finish: Callable[[torch.Tensor, torch.Tensor], Any],
) -> int:
    host = tensors_of_torch.ready(tensor, call[0])
    described = tensors_of_torch.described(call[0], host)
    started = collective.alltoall(collective.Call(*call, [described]), splits)

    def results() -> Any:
        received = tensors_of_torch.result(started, 0, host, tensor.device)
        return finish(received, tensors_of_torch.result(started, 1, torch.empty(0, dtype=torch.int64)))

    return register([started], host, results)


class _Alltoall(torch.autograd.Function):
    """The rows return to where they came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        label, number = label_of(name, process_set)
        received, came = synchronize(_start(tensor, splits or (), (label, number), lambda *pair: pair))
        ctx.label, ctx.process_set, ctx.came = label, process_set, came
        ctx.mark_non_differentiable(came)
        return received, came

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
        label = f"gradient of {ctx.label}"
        returned, _ = alltoall(gradient, splits=ctx.came, name=label, process_set=ctx.process_set)
        return returned, None, None, None
