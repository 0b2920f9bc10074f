"""Allreduce: every rank gets the elementwise reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tfdist.errors import UnsupportedError
from tfdist.native import collective
from tfdist.native.collective import Gpu
from tfdist.ops.reduction import Average, ReduceOp, Sum, reduction_of
from tfdist.torch.collective import tensor as tensors_of_torch
from tfdist.torch.collective.compression import Compression, parts_of
from tfdist.torch.collective.handle import label_of, register, synchronize
from tfdist.torch.collective.reduction import Scaling
from tfdist.world.process_sets import ProcessSet, global_process_set
from tfdist.world.session import session


def allreduce(  # noqa: PLR0913 -- the signature of Horovod
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks; has a gradient for Sum and Average.

    Args:
        tensor: Tensor of any shape and supported dtype, the same on every rank. Those on a GPU are
            reduced there by NCCL, or with `TFDIST_GPU_OPERATIONS=mpi` in the host's memory.
        average: Horovod's older form of `op`: True is Average, False is Sum.
        name: Same on every rank. Without one, all ranks call unnamed collectives in the same order.
        compression: Wire type of float32 and float64 tensors, or a custom compression.
        op: `Average` (default), `Sum`, `Min`, `Max`, `Product` or `Adasum`, which needs a floating dtype.
        prescale_factor: Multiplies the tensor before the reduction.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A new tensor, with the same bits on every rank. Averages and products with factors of integers are cut off
        towards zero; their averages are made of sums in int64, other reductions wrap around in their dtype.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: If an argument is invalid.
        PeerLostError: If a rank died.

    Example:

    ```python
    loss = hvd.allreduce(loss, name="loss")
    ```
    """
    how = _how((average, op), (prescale_factor, postscale_factor), name, process_set, compression)
    return _differentiable([tensor], how, compression)[0]


def grouped_allreduce(  # noqa: PLR0913 -- the signature of Horovod
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors over all ranks in one fused collective. The arguments are those of `allreduce`.

    Args:
        tensors: Tensors as in `allreduce`; may differ in dtype and shape from each other.
        average: As in `allreduce`.
        name: As in `allreduce`.
        compression: As in `allreduce`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        List in the order of `tensors`.
    """
    how = _how((average, op), (prescale_factor, postscale_factor), name, process_set, compression)
    return _differentiable(tensors, how, compression)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `allreduce`, but the tensor itself gets the result. Has no gradient.

    Args:
        tensor: As in `allreduce`; may be a leaf that requires a gradient.
        average: As in `allreduce`.
        name: As in `allreduce`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        `tensor`.
    """
    factors = (prescale_factor, postscale_factor)
    reduced: torch.Tensor = synchronize(allreduce_async_(tensor, average, name, op, *factors, process_set))
    return reduced


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `grouped_allreduce`, but the tensors themselves get the results. Has no gradient.

    Args:
        tensors: As in `grouped_allreduce`; may be leaves that require a gradient.
        average: As in `allreduce`.
        name: As in `allreduce`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        List of the same tensors.
    """
    factors = (prescale_factor, postscale_factor)
    reduced: list[torch.Tensor] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, *factors, process_set)
    )
    return reduced


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `allreduce`, without a gradient.

    Args:
        tensor: As in `allreduce`; must not change before `synchronize`.
        average: As in `allreduce`.
        name: As in `allreduce`; not that of a collective that has not ended.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    how = _how((average, op), (prescale_factor, postscale_factor), name, process_set)
    return _start([tensor], how, in_place=False, finish=lambda reduced: reduced[0])


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `grouped_allreduce`, without a gradient.

    Args:
        tensors: As in `grouped_allreduce`; must not change before `synchronize`.
        average: As in `allreduce`.
        name: As in `allreduce_async`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    how = _how((average, op), (prescale_factor, postscale_factor), name, process_set)
    return _start(tensors, how, in_place=False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `allreduce_`.

    Args:
        tensor: As in `allreduce_`; must not be used before `synchronize`.
        average: As in `allreduce`.
        name: As in `allreduce_async`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    how = _how((average, op), (prescale_factor, postscale_factor), name, process_set)
    tensors_of_torch.will_change([tensor], [how.label])
    return _start([tensor], how, in_place=True, finish=lambda reduced: reduced[0])


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `grouped_allreduce_`.

    Args:
        tensors: As in `grouped_allreduce_`; must not be used before `synchronize`.
        average: As in `allreduce`.
        name: As in `allreduce_async`.
        op: As in `allreduce`.
        prescale_factor: As in `allreduce`.
        postscale_factor: As in `allreduce`.
        process_set: As in `allreduce`.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    how = _how((average, op), (prescale_factor, postscale_factor), name, process_set)
    tensors_of_torch.will_change(tensors, tensors_of_torch.names_of(tensors, how.label))
    return _start(tensors, how, in_place=True)


def start_gradients(tensors: Sequence[torch.Tensor], names: Sequence[str], how: Reducing) -> int:
    """Starts the reduction of gradients in place, with a name for each that the ranks compare.

    Args:
        tensors: As in `grouped_allreduce_`.
        names: One per tensor.
        how: As from `reducing`.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    return _start(tensors, how, in_place=True, names=names)


def reducing(
    op: ReduceOp, factors: tuple[float, float], label: str, process_set: ProcessSet, compression: Any
) -> Reducing:
    """What an all-reduce with these arguments of `grouped_allreduce` does."""
    return _how((None, op), factors, label, process_set, compression)


@dataclass(frozen=True)
class Reducing:
    """What an all-reduce does, but for its tensors.

    Attributes:
        label: Its name.
        process_set: The ranks that take part.
        number: That of the process set.
        scaling: The reduction and its factors.
    """

    label: str
    process_set: ProcessSet
    number: int
    scaling: Scaling


def _how(
    operation: tuple[bool | None, ReduceOp | None],
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    compression: Any = Compression.none,
) -> Reducing:
    op, (wire, _) = reduction_of(*operation), parts_of(compression)
    label, number = label_of(name, process_set)
    return Reducing(label, process_set, number, Scaling(op, *factors, process_set.size(), wire.value))


def _differentiable(tensors: Sequence[torch.Tensor], how: Reducing, compression: Any) -> list[torch.Tensor]:
    _, custom = parts_of(compression)
    if not tensors:
        return []
    if custom is None:
        return list(_Allreduce.apply(how, *tensors))
    pairs = [custom.compress(tensor) for tensor in tensors]
    reduced = _Allreduce.apply(how, *(tensor for tensor, _ in pairs))
    return [custom.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


@dataclass
class _Operand:
    """One tensor on its way through the engine.

    Attributes:
        name: By which the ranks know it, and what errors call it.
        given: The tensor of the script.
        sent: What the engine reads.
        received: What the engine writes.
    """

    name: str
    given: torch.Tensor
    sent: torch.Tensor
    received: torch.Tensor

    @classmethod
    def of(cls, given: torch.Tensor, name: str, scaling: Scaling, in_place: bool, gpu: Gpu | None) -> _Operand:
        """Checks the tensor, and finds memory for its result."""
        ready = tensors_of_torch.ready(given, name, gpu)
        scaling.check(ready, name)
        sent = scaling.before(ready)
        own = in_place or sent.data_ptr() != given.data_ptr()
        return cls(scaling.name(ready, name), given, sent, sent if own else torch.empty_like(sent))

    def result(self, scaling: Scaling, in_place: bool) -> torch.Tensor:
        """The result, in the tensor of the script if it is in place."""
        reduced = scaling.after(self.received, self.given.dtype)
        if not in_place:
            return reduced.to(self.given.device)
        if reduced.data_ptr() != self.given.data_ptr() or not self.given.is_contiguous():
            self.given.detach().copy_(reduced)
        return self.given


def _remember(tensors: Sequence[torch.Tensor]) -> None:
    """Records that a script reduces gradients, maybe itself; a single number is a loss, a metric or a count."""
    if any(tensor.numel() > 1 for tensor in tensors):
        session.gradients_reduced = True


def _start(
    tensors: Sequence[torch.Tensor],
    how: Reducing,
    in_place: bool,
    finish: Callable[[list[torch.Tensor]], Any] = list,
    names: Sequence[str] = (),
) -> int:
    """Starts the collective: two, if floating tensors and integers need different reductions of the engine."""
    scaling, names = how.scaling, names or tensors_of_torch.names_of(tensors, how.label)
    gpu = tensors_of_torch.gpu_of(tensors)
    operands = [_Operand.of(tensor, name, scaling, in_place, gpu) for tensor, name in zip(tensors, names, strict=True)]
    _remember(tensors)
    floating = [operand for operand in operands if operand.sent.is_floating_point()]
    integers = [operand for operand in operands if not operand.sent.is_floating_point()]
    parts = [(how.label, operands, not integers)]
    if floating and integers and scaling.changes_integers():
        parts = [(how.label, floating, True), (f"{how.label}/integers", integers, False)]
    numbers: list[int] = []
    try:
        for label, those, of_floats in parts:
            described = [tensors_of_torch.described(part.name, part.sent, part.received) for part in those]
            call = collective.Call(label, how.number, described, gpu)
            numbers.append(collective.allreduce(call, scaling.of_engine(of_floats)))
    finally:
        if numbers:  # what was started uses the memory, even if the second part was refused
            handle = register(
                numbers, operands, lambda: finish([operand.result(scaling, in_place) for operand in operands])
            )
    return handle


class _Allreduce(torch.autograd.Function):
    """The sum of what all ranks differentiate has as its gradient the same reduction of the results' gradients."""

    @staticmethod
    def forward(ctx: Any, how: Reducing, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.how = how
        return tuple(synchronize(_start(tensors, how, in_place=False)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        how: Reducing = ctx.how
        if how.scaling.op not in (Average, Sum):
            raise UnsupportedError(
                f"the gradient of allreduce {how.label!r} by {how.scaling.op.value} is not defined here; those of "
                "Average and Sum are. Call allreduce on tensor.detach()."
            )
        places = [place for place, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        reduced = iter(
            _Allreduce.apply(replace(how, label=f"gradient of {how.label}"), *(gradients[place] for place in places))
        )
        return None, *(next(reduced) if place in places else None for place in range(len(gradients)))
