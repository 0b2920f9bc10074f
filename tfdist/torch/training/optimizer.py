"""`DistributedOptimizer`: averages gradients over the ranks during the backward pass, before the optimizer's step."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.ops.reduction import Adasum, Average, ReduceOp, Sum
from tfdist.torch.collective.compression import Compression
from tfdist.torch.collective.handle import optimizer_label
from tfdist.torch.training import grad_scaler
from tfdist.torch.training.adasum import AdasumSteps
from tfdist.torch.training.drift import Drift
from tfdist.torch.training.gradient_plan import by_size, named_of, plan
from tfdist.torch.training.gradient_reducer import OTHER_MODELS, BucketReduction, GradientReducer, take_over
from tfdist.world import tuning
from tfdist.world.process_sets import ProcessSet, global_process_set

# Where PyTorch has the function around each `step` that calls hooks.
_AROUND_STEPS = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
# What is around the steps of each.
_in_use: weakref.WeakSet[Any] = weakref.WeakSet()


def DistributedOptimizer(  # noqa: N802, PLR0913 -- the name and signature of Horovod
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    drift: str = "error",
) -> Any:
    """Makes an optimizer average the gradients of all ranks before each step.

    Gradients travel in buckets, each started as soon as the backward pass has computed all of its gradients. A
    parameter that has none at `step()`, such as one of a branch that was not taken, counts as zeros on this rank; a
    warning names it once. One that requires none by then, on all ranks, stays as it is. Before the first step, and
    after steps 1, 2, 4, 8 and so on, the ranks compare their parameters. What a closure returns is reduced as the
    gradients are, where the step depends on it, as of LBFGS.

    Args:
        optimizer: An optimizer of PyTorch, or one like it. It keeps its state, and is itself made distributed.
        named_parameters: `model.named_parameters()`: names for errors and warnings. None numbers the parameters.
        compression: Wire type of float32 and float64 gradients, or a custom compression.
        backward_passes_per_step: How many backward passes there are before each step. Their gradients add up, as in
            one process: divide the loss to average them.
        op: `Average` (default), `Sum`, or `Adasum`, which combines the changes that each rank's own step makes.
        gradient_predivide_factor: With `Average`, gradients are divided by it before the sum, and the sum by the
            number of ranks over it: against overflow in 16 bits.
        num_groups: Horovod's older form of `groups`.
        groups: How many buckets; or lists of parameters that travel together, while the others travel by size
            (`TFDIST_FUSION_THRESHOLD`). None: all by size.
        sparse_as_dense: Reduces sparse gradients as dense ones. Otherwise their rows are gathered.
        process_set: The ranks that take part. On others the optimizer stays as it is.
        drift: What parameters do that differ between the ranks by more than rounding: "error" (default), "warn", or
            "off", for ranks that train different models on purpose.

    Returns:
        `optimizer`, which has also `synchronize()`, `skip_synchronize()` and `set_backward_passes_per_step(n)`.

    Raises:
        ConfigError: If an argument is invalid.
        MismatchError: On every rank, if the ranks have other parameters, or other values of them.

    Example:

    ```python
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    ```
    """
    if hasattr(optimizer, "skip_synchronize"):
        raise ConfigError("the optimizer is distributed already; call DistributedOptimizer once.")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ConfigError("gradient_predivide_factor needs op=Average; leave it at 1.0 for another op.")
    if op not in (Average, Sum, Adasum):
        raise ConfigError(f"DistributedOptimizer supports op=Average, Sum or Adasum of tfdist.torch; received {op!r}.")
    if num_groups and groups is not None:
        raise ConfigError("received both num_groups and groups, which replaces it; pass groups only.")
    named = named_of(optimizer.param_groups, named_parameters)
    if not process_set.included():
        return optimizer
    threshold, wanted = tuning.current().fusion_threshold, groups if groups is not None else num_groups or None
    buckets = plan(named, wanted, threshold)
    label = optimizer_label(process_set)
    compared = Drift(named, label, process_set, drift)
    took_over = take_over(named)
    if op is Adasum:
        reducer: Any = AdasumSteps(named, label, compression, process_set, compared)
    else:
        factors = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
        make = BucketReduction(op, factors, label, process_set, compression, sparse_as_dense)
        replan = functools.partial(by_size, threshold=threshold) if wanted is None else None
        reducer = GradientReducer(buckets, make, backward_passes_per_step, compared, replan)
        reducer.watch(took_over)
    grad_scaler.install()
    _in_use.add(reducer)
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {"_tfdist": reducer, "__module__": kind.__module__})
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


def begin_all_anew() -> None:
    """Lets all optimizers begin a step, whichever was interrupted when the ranks changed."""
    for reducer in list(_in_use):
        reducer.begin_anew()


class _Distributed:
    """What an optimizer has in addition once it is distributed."""

    _tfdist: Any
    _has_reduced = False  # in this step, since the closure was called, if there is one

    def synchronize(self) -> None:
        """Waits until all gradients are reduced: to clip them before `step()`, inside `skip_synchronize()`."""
        self._tfdist.synchronize()

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        """A context in which `step()` does not reduce: after `synchronize()`.

        Raises:
            ConfigError: With `op=Adasum`, whose reduction is part of the step.
        """
        return self._tfdist.skipping()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes there are before each step, from the next step on.

        Args:
            passes: Their number.
        """
        self._tfdist.set_passes(passes)

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """As of the optimizer.

        Raises:
            ConfigError: Between `backward()` and `step()`: the gradients are on their way.
        """
        if self._tfdist.is_under_way():
            raise ConfigError(
                "optimizer.zero_grad() was called after backward() but before step() or synchronize(), while gradients "
                f"are being reduced. Call it before backward() or after step(). {OTHER_MODELS} Where all ranks leave a "
                "step out, call optimizer.synchronize() in its place."
            )
        self._tfdist.discard()
        return super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies nothing: what reduces the gradients of these parameters would not come along.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "a distributed optimizer cannot be copied or pickled. Copy it before DistributedOptimizer; or make a new "
            "one for the other parameters, and give it the state: new.load_state_dict(optimizer.state_dict())"
        )


def _before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reduces what the backward pass has left; with a closure after each of its calls.

    Once: PyTorch comes here again where a class takes the step of its parent, of which there is an optimizer too.
    """
    if not _is_nested(optimizer):
        optimizer._has_reduced = False
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        if not optimizer._has_reduced:
            _reduce(optimizer)
        return None

    def reduced() -> Any:
        optimizer._has_reduced = False
        loss = closure()
        if optimizer._has_reduced:  # by the function that an outer step has made of the script's closure
            return loss
        _reduce(optimizer)
        return optimizer._tfdist.loss_of_all(loss) if _uses_loss(optimizer) else loss

    return args[:1], {**kwargs, "closure": reduced}


def _reduce(optimizer: Any) -> None:
    optimizer._tfdist.before_step([parameter for group in optimizer.param_groups for parameter in group["params"]])
    optimizer._has_reduced = True


def _after_step(optimizer: Any, *_: Any) -> None:
    """Ends the step, but not where that of a parent has ended in it."""
    if not _is_nested(optimizer):
        optimizer._tfdist.after_step()


def _is_nested(optimizer: Any) -> bool:
    """Whether a step of this optimizer is inside another one of it.

    The stack knows, also after a step that has failed: PyTorch calls hooks from a function around each `step`.
    """
    count, frame = 0, sys._getframe()
    while frame.f_back is not None and count < 2:
        frame = frame.f_back
        code = frame.f_code
        around = "wrapper" in code.co_name and code.co_filename == _AROUND_STEPS
        count += around and frame.f_locals.get("self") is optimizer
    return count > 1


def _uses_loss(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step depends on the loss, so that it must be that of all ranks. Only LBFGS does of PyTorch's own."""
    kinds = [kind for kind in type(optimizer).__mro__ if issubclass(kind, torch.optim.Optimizer)]
    own = all(kind.__module__.startswith("torch.optim") for kind in kinds)
    return isinstance(optimizer, torch.optim.LBFGS) or not own
