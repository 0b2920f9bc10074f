"""The sum or average of sparse gradients, by gathering the rows of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tfdist.errors import ConfigError
from tfdist.ops.reduction import Average, ReduceOp, Sum
from tfdist.torch.collective.allgather import grouped_allgather_async
from tfdist.torch.collective.handle import synchronize
from tfdist.world.process_sets import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse tensor, such as the gradient of an embedding with `sparse=True`.

    Args:
        tensor: Sparse COO tensor of the same shape on every rank; the places of its values may differ.
        name: Same on every rank; not that of a collective that has not ended.
        op: `Average` or `Sum`.
        process_set: The ranks that take part.

    Returns:
        A function that waits, and returns the sparse result, whose equal places are not added up yet (`coalesce`).

    Raises:
        ConfigError: If the tensor is not a sparse COO tensor, or `op` is another operation.

    Example:

    ```python
    wait = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
    embedding.weight.grad = wait()
    ```
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        layout: Any = getattr(tensor, "layout", type(tensor).__name__)
        raise ConfigError(f"sparse_allreduce_async takes a sparse COO tensor; received {layout}. Use allreduce_async.")
    if op not in (Average, Sum):
        raise ConfigError(f"sparse_allreduce_async supports op=Average or op=Sum; received {op!r}.")
    values = tensor._values()
    handle = grouped_allgather_async([tensor._indices().t().contiguous(), values], name, process_set)
    size = process_set.size() if op is Average else 1

    def wait() -> torch.Tensor:
        indices, gathered = synchronize(handle)
        summed = gathered / size if size != 1 else gathered
        return torch.sparse_coo_tensor(
            indices.t(), summed, tensor.shape, device=tensor.device, is_coalesced=False, check_invariants=False
        )

    return wait
