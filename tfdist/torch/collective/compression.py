"""The wire types of gradients, and custom compressions, for tensors of PyTorch."""

from __future__ import annotations

import enum
from typing import Any

import torch

from tfdist import config
from tfdist.errors import ConfigError


class Compression(enum.Enum):
    """Wire type of float32 and float64 tensors; other dtypes are sent unchanged.

    Given to a collective, the cast happens in the engine, whose sums are in float32; `tfdist.Compression` has its
    limits. Anything else with `compress(tensor)`, which returns a tensor and a context, and `decompress(tensor, ctx)`
    is a custom compression, whose methods run before and after the collective.

    Example:

    ```python
    tensor = hvd.allreduce(tensor, compression=hvd.Compression.fp16)
    ```
    """

    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Returns the tensor cast to the wire type, and its dtype."""
        wire = config.COMPRESSIONS[self.value]
        is_wide = tensor.dtype in (torch.float32, torch.float64)
        return (tensor.to(getattr(torch, wire)) if wire and is_wide else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """Returns the tensor cast back to the dtype `ctx`."""
        return tensor.to(ctx)


def parts_of(compression: Any) -> tuple[Compression, Any]:
    """The compression that the engine applies, and the custom one around it; None if there is none.

    Raises:
        ConfigError: If it is neither a member nor has the two methods.
    """
    if isinstance(compression, Compression):
        return compression, None
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        names = ", ".join(f"Compression.{member.value}" for member in Compression)
        raise ConfigError(
            f"compression must be one of {names}, or have compress(tensor) and decompress(tensor, ctx); received "
            f"{compression!r}."
        )
    return Compression.none, compression
