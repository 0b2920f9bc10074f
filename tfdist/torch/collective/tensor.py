"""Tensors of PyTorch as the engine sees them: contiguous, of a dtype that it carries, and where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.native import collective
from tfdist.native.collective import DenseTensor, Gpu

# As the driver calls the stream that PyTorch gives the address 0.
_DEFAULT_STREAM = 1
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


def gpu_of(tensors: Sequence[Any]) -> Gpu | None:
    """The GPU that has all of these tensors, with the current stream of the script.

    None where they are elsewhere or apart, or collectives do not run on GPUs: then the host's memory is used.
    """
    devices = {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor)}
    device = next(iter(devices)) if len(devices) == 1 else None
    if device is None or device.type != "cuda" or config.value("gpu_operations") != "nccl":
        return None
    return Gpu(device.index, torch.cuda.current_stream(device).cuda_stream or _DEFAULT_STREAM)


def ready(tensor: Any, name: str, gpu: Gpu | None = None) -> torch.Tensor:
    """The tensor itself if it is contiguous and where the engine reads it, else a copy that is.

    Args:
        tensor: What the script gave.
        name: What errors call it.
        gpu: Where the engine reads it; None for the host's memory.

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
    there = tensor.detach() if gpu else tensor.detach().cpu()
    return there.resolve_neg().contiguous()  # a view of a complex tensor may negate what is in its memory


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements of a dense tensor are one in memory, so that they cannot get values of their own."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 1 and any(count > 1 and stride == 0 for count, stride in places)


def will_change(tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Tells PyTorch that these are changed in place, so that a backward pass which needs them as they were says so.

    Raises:
        ConfigError: If one is expanded; names the tensor.
    """
    for tensor, name in zip(tensors, names, strict=True):
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and is_expanded(tensor):
            raise ConfigError(
                f"{name} cannot be overwritten: it is expanded, so several of its elements are one in memory. Give a "
                "copy in its place: x = x.contiguous()"
            )
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def described(name: str, tensor: torch.Tensor, output: torch.Tensor | None = None) -> DenseTensor:
    """What the engine needs to know of a tensor that `ready` has returned.

    Args:
        name: What errors call it.
        tensor: The tensor.
        output: Where the result of the same shape goes, if it is not the engine that makes its memory.
    """
    into = 0 if output is None else output.data_ptr()
    return DenseTensor(name, _DTYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr(), into)


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
