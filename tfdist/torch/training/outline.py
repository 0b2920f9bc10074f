"""Takes the tensors out of a nested value, such as the state of an optimizer, and puts others into their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Place:
    """Stands for a tensor, which travels or is stored apart."""

    dtype: torch.dtype
    shape: torch.Size


def without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value with a `Place` for each tensor, which is appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Place(value.dtype, value.shape)
    if isinstance(value, dict):
        return {key: without_tensors(part, tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(without_tensors(part, tensors) for part in value)
    return value


def with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value with a new tensor of the host in each place, which is appended to `tensors`."""
    if isinstance(value, Place):
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device="cpu"))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: with_tensors(part, tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_tensors(part, tensors) for part in value)
    return value
