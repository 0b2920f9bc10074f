"""Tensors of PyTorch as the engine sees them: contiguous, in the host's memory, of a dtype that it carries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tfdist.errors import ConfigError
from tfdist.native import collective
from tfdist.native.collective import HostTensor

_DTYPES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.uint16: "uint16",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


def dtype_of(tensor: torch.Tensor, name: str) -> str:
    """The engine's name of the dtype.

    Raises:
        ConfigError: If collectives do not carry it; names the tensor.
    """
    if tensor.dtype not in _DTYPES:
        supported = ", ".join(_DTYPES.values())
        raise ConfigError(
            f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}; collectives support {supported}. Cast it "
            "first."
        )
    return _DTYPES[tensor.dtype]


def host(tensor: Any, name: str) -> torch.Tensor:
    """The tensor itself if it is contiguous and in the host's memory, else a copy that is.

    Raises:
        ConfigError: If it is no dense tensor, has no memory, or has a dtype that collectives do not carry.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} is a {type(tensor).__name__}; collectives take a torch.Tensor.")
    if tensor.layout != torch.strided:
        raise ConfigError(
            f"{name} has layout {tensor.layout}; this collective takes dense tensors. Use sparse_allreduce_async for a "
            "sparse gradient, or tensor.to_dense()."
        )
    dtype_of(tensor, name)
    if tensor.device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"{name} is on device {tensor.device}; collectives take tensors on cpu or cuda. Move it there first."
        )
    return tensor.detach().cpu().contiguous()


def described(name: str, tensor: torch.Tensor, output: torch.Tensor | None = None) -> HostTensor:
    """What the engine needs to know of a tensor that `host` has returned.

    Args:
        name: What errors call it.
        tensor: The tensor.
        output: Where the result of the same shape goes, if it is not the engine that makes its memory.
    """
    into = 0 if output is None else output.data_ptr()
    return HostTensor(name, _DTYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr(), into)


def result(number: int, index: int, like: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A result of a collective that has ended, without a copy of what is in the host's memory.

    Args:
        number: That of the collective.
        index: That of the result.
        like: Has its dtype, and its shape but for dimension 0.
        device: Where it is wanted; None for the host.
    """
    row = tuple(like.shape[1:])
    memory, rows = collective.result(number, index, math.prod(row) * like.element_size())
    if memory is None:
        return torch.empty((rows, *row), dtype=like.dtype, device=device or "cpu")
    whole = torch.from_numpy(np.asarray(memory)).view(like.dtype).view(rows, *row)
    return whole if device is None else whole.to(device)


def names_of(tensors: Sequence[Any], label: str) -> list[str]:
    """A name for each tensor, the same on every rank: the label, numbered if there are several."""
    return [label] if len(tensors) == 1 else [f"{label}/{index}" for index in range(len(tensors))]
