"""Gives all ranks the parameters, or the state of the optimizer, of one rank: at the start and after a resume."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.torch.collective.broadcast import overwrite
from tfdist.torch.collective.object import broadcast_object
from tfdist.torch.training.outline import with_tensors, without_tensors
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set
from tfdist.world.session import session


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites tensors with the values they have on rank `root_rank`, in one collective.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`: the same tensors on every
            rank, in the same order unless they are a mapping.
        root_rank: The rank whose values are wanted, by its number among all ranks.
        process_set: The ranks that take part.

    Raises:
        MismatchError: On every rank, if a name, a dtype, a shape or the root differs.
        ConfigError: If an entry is not a tensor.

    Example:

    ```python
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    ```
    """
    named = sorted(params.items()) if isinstance(params, Mapping) else _numbered(params)
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(
                f"broadcast_parameters received {name!r}, a {type(tensor).__name__}; expected tensors. Send other "
                "values with broadcast_object."
            )
    session.parameters_sent |= process_set.size() > 1
    with torch.no_grad():
        overwrite(
            [tensor for _, tensor in named],
            [name for name, _ in named],
            root_rank,
            "broadcast_parameters",
            process_set,
        )


def _numbered(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, (torch.Tensor, str)) or not isinstance(params, Iterable):
        raise ConfigError(
            f"broadcast_parameters expects model.state_dict(), model.named_parameters() or a list of tensors; received "
            f"{type(params).__name__}."
        )
    return [
        (str(part[0]), part[1]) if isinstance(part, tuple) else (f"parameter {index}", part)
        for index, part in enumerate(params)
    ]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the state and the settings, such as learning rates, that the optimizer has on rank `root_rank`.

    Unlike Horovod's it takes no step to make the state of a new optimizer, so no parameter changes; the optimizers of
    the other ranks may have a state of another form, or none.

    Args:
        optimizer: Any optimizer but LBFGS, with the same groups of parameters on every rank.
        root_rank: The rank whose state is wanted, by its number among all ranks.
        process_set: The ranks that take part.

    Raises:
        ConfigError: For `torch.optim.LBFGS`, whose state holds functions of the closure; or if the state does not fit
            this rank's optimizer.

    Example:

    ```python
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    ```
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("broadcast_optimizer_state received torch.optim.LBFGS, whose state cannot be sent.")
    is_root = runtime.rank() == root_rank
    tensors: list[torch.Tensor] = []
    outline = without_tensors(optimizer.state_dict(), tensors) if is_root else None
    outline = broadcast_object(outline, root_rank, "optimizer_state", process_set)
    if not is_root:
        state = with_tensors(outline, tensors)
    names = [f"optimizer tensor {index}" for index in range(len(tensors))]
    overwrite(tensors, names, root_rank, "optimizer_state/tensors", process_set)
    if is_root:
        return
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"the state of the optimizer of rank {root_rank} does not fit that of this rank: {error}. Make the same "
            "optimizer, with the same groups of parameters, on every rank."
        ) from error
    _keep_dtypes(optimizer, state["state"])


def _keep_dtypes(optimizer: torch.optim.Optimizer, state: Mapping[Any, Any]) -> None:
    """Takes tensors as they came where `load_state_dict` has cast them to the dtype of their parameter."""
    parameters = itertools.chain(*(group["params"] for group in optimizer.param_groups))
    for place, parameter in enumerate(parameters):
        entries = optimizer.state.get(parameter, {})
        for name, came in state.get(place, {}).items():
            loaded = entries.get(name)
            if isinstance(came, torch.Tensor) and isinstance(loaded, torch.Tensor) and came.dtype != loaded.dtype:
                entries[name] = came.to(loaded.device)
