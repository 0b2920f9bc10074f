"""Lets the gradients of PyTorch's own `DistributedDataParallel` travel through tfdist.

Annotations are evaluated here: PyTorch looks at those of a hook.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import distributed

from tfdist.errors import ConfigError
from tfdist.native.once import Once
from tfdist.ops.reduction import Average
from tfdist.torch.collective.allreduce import reducing, start_gradients
from tfdist.torch.collective.compression import Compression
from tfdist.torch.collective.handle import optimizer_label, synchronize
from tfdist.world.process_sets import ProcessSet, global_process_set


def ddp_comm_hook(
    compression: Compression = Compression.none, process_set: ProcessSet = global_process_set
) -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A hook for `DistributedDataParallel.register_comm_hook`, which averages the gradients over the ranks.

    `DistributedDataParallel` needs a process group of PyTorch to start, for example one of gloo; the gradients no
    longer use it. Its ranks are those of `process_set`.

    Args:
        compression: Wire type of float32 and float64 gradients: a member of `Compression`.
        process_set: The ranks that take part.

    Returns:
        The hook; its state is not used. An error of a collective ends `backward()`.

    Raises:
        ConfigError: If `compression` is no member of `Compression`.

    Example:

    ```python
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(None, hvd.ddp_comm_hook(compression=hvd.Compression.fp16))
    ```
    """
    if not isinstance(compression, Compression):
        raise ConfigError(f"ddp_comm_hook expects a member of Compression; received compression={compression!r}.")
    label = optimizer_label(process_set)

    def hook(state: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        name = f"{label} bucket {bucket.index()}"
        with torch.no_grad():
            how = reducing(Average, (1.0, 1.0), name, process_set, compression)
            handle = start_gradients([gradients], [name], how)
        devices = [gradients.device] if gradients.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        _waiter().submit(_finish, handle, gradients, future)
        return future

    return hook


def _finish(handle: int, gradients: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
    try:
        synchronize(handle)
    except Exception as error:  # noqa: BLE001  (backward() raises it)
        future.set_exception(error)
    else:
        future.set_result(gradients)


@Once
def _waiter() -> ThreadPoolExecutor:
    """One thread: the collectives end in the order in which they began."""
    return ThreadPoolExecutor(1, thread_name_prefix="tfdist-ddp")
