"""Reducescatter: every rank gets its rows of the reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.native import collective
from tfdist.ops.graph import gradient_factor
from tfdist.ops.reduction import Average, ReduceOp, Sum, reduction_of
from tfdist.torch.collective import tensor as tensors_of_torch
from tfdist.torch.collective.allgather import grouped_allgather
from tfdist.torch.collective.compression import Compression, parts_of
from tfdist.torch.collective.handle import label_of, register, synchronize
from tfdist.torch.collective.reduction import Scaling
from tfdist.world.process_sets import ProcessSet, global_process_set


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and returns this rank's rows of the result; has a gradient.

    Args:
        tensor: Tensor as in `allreduce`, with at least one dimension. The lower ranks get one row more where the rows
            do not divide evenly.
        name: Same on every rank. Without one, all ranks call unnamed collectives in the same order.
        compression: `Compression.none`, `.fp16` or `.bf16`.
        op: `Average` (default) or `Sum`.
        process_set: The ranks that take part.
        prescale_factor: Multiplies the tensor before the reduction.
        postscale_factor: Multiplies the result.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument is invalid.

    Example:

    ```python
    rows = hvd.reducescatter(gradient, op=hvd.Sum, name="gradient")
    ```
    """
    factors = (prescale_factor, postscale_factor)
    return grouped_reducescatter([tensor], name, compression, op, process_set, *factors)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces several tensors in one collective and returns this rank's rows of each, as `reducescatter`.

    Args:
        tensors: Tensors as in `reducescatter`; may differ in dtype and shape from each other.
        name: As in `reducescatter`.
        compression: As in `reducescatter`.
        op: As in `reducescatter`.
        process_set: The ranks that take part.
        prescale_factor: As in `reducescatter`.
        postscale_factor: As in `reducescatter`.

    Returns:
        List in the order of `tensors`.
    """
    if not tensors:
        return []
    wire, custom = parts_of(compression)
    if custom is not None:
        raise ConfigError(
            f"reducescatter supports the members of Compression; received {compression!r}, whose decompress would get "
            "only some rows. Compress the tensor yourself."
        )
    scaling = _scaling(op, (prescale_factor, postscale_factor), process_set, wire.value)
    return list(_Reducescatter.apply(name, scaling, process_set, *tensors))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a `reducescatter`, without a gradient; returns a handle for `poll` and `synchronize`.

    Args:
        tensor: As in `reducescatter`; must not change before `synchronize`.
        name: As in `reducescatter`; not that of a collective that has not ended.
        op: As in `reducescatter`.
        process_set: The ranks that take part.
        prescale_factor: As in `reducescatter`.
        postscale_factor: As in `reducescatter`.
    """
    scaling = _scaling(op, (prescale_factor, postscale_factor), process_set)
    return _start([tensor], scaling, label_of(name, process_set), lambda rows: rows[0])


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a `grouped_reducescatter`, without a gradient; returns a handle for `poll` and `synchronize`.

    Args:
        tensors: As in `grouped_reducescatter`; must not change before `synchronize`.
        name: As in `reducescatter_async`.
        op: As in `reducescatter`.
        process_set: The ranks that take part.
        prescale_factor: As in `reducescatter`.
        postscale_factor: As in `reducescatter`.
    """
    scaling = _scaling(op, (prescale_factor, postscale_factor), process_set)
    return _start(tensors, scaling, label_of(name, process_set), list)


def _scaling(op: ReduceOp, factors: tuple[float, float], process_set: ProcessSet, wire: str = "none") -> Scaling:
    if reduction_of(None, op) not in (Average, Sum):
        raise ConfigError(f"reducescatter supports op=Average or op=Sum; received {op!r}.")
    return Scaling(op, *factors, process_set.size(), wire)


def _start(
    tensors: Sequence[torch.Tensor],
    scaling: Scaling,
    call: tuple[str, int],
    finish: Callable[[list[torch.Tensor]], Any],
) -> int:
    names = tensors_of_torch.names_of(tensors, call[0])
    hosts = [tensors_of_torch.ready(tensor, name) for tensor, name in zip(tensors, names, strict=True)]
    for host, name in zip(hosts, names, strict=True):
        scaling.check(host, name)
    of_floats = {host.is_floating_point() for host in hosts}
    if len(of_floats) > 1 and scaling.changes_integers():
        raise ConfigError(
            f"grouped reducescatter {call[0]!r} received floating tensors and integers, with an average or factors. "
            "Reduce them in two groups, or pass op=Sum without factors."
        )
    sent = [scaling.before(host) for host in hosts]
    described = list(map(tensors_of_torch.described, map(scaling.name, hosts, names), sent))
    started = collective.reducescatter(collective.Call(*call, described), scaling.of_engine(of_floats == {True}))

    def results() -> Any:
        rows = [tensors_of_torch.result(started, index, each) for index, each in enumerate(sent)]
        scaled = [scaling.after(part, tensor.dtype) for part, tensor in zip(rows, tensors, strict=True)]
        return finish([part.to(tensor.device) for part, tensor in zip(scaled, tensors, strict=True)])

    return register([started], sent, results)


class _Reducescatter(torch.autograd.Function):
    """Every rank's tensor fed all rows, each of which is on one rank."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, scaling: Scaling, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        label, number = label_of(name, process_set)
        ctx.label, ctx.scaling, ctx.process_set = label, scaling, process_set
        return tuple(synchronize(_start(tensors, scaling, (label, number), list)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        scaling: Scaling = ctx.scaling
        factor = scaling.prescale * scaling.postscale / (scaling.size if scaling.op is Average else 1)
        factor *= gradient_factor.of_repeated_sum("reducescatter", ctx.process_set)
        places = [place for place, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        scaled = [gradients[place] * factor for place in places]
        wholes = grouped_allgather(scaled, f"gradient of {ctx.label}", ctx.process_set)
        results: list[torch.Tensor | None] = [None] * len(gradients)
        for place, whole in zip(places, wholes, strict=True):
            results[place] = whole
        return None, None, None, *results
