"""Elastic states of PyTorch: models, optimizers, samplers and Python objects."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from tfdist.elastic import state as elastic_state
from tfdist.elastic.framework import Framework
from tfdist.errors import ConfigError, TfdistError
from tfdist.torch.collective.handle import count_alike, forget_all
from tfdist.torch.collective.object import allgather_object, broadcast_object
from tfdist.torch.training.optimizer import begin_all_anew
from tfdist.torch.training.outline import with_tensors, without_tensors
from tfdist.torch.training.state import broadcast_optimizer_state, broadcast_parameters
from tfdist.world import loss


class ObjectState(elastic_state.ObjectState):
    """A state of Python objects, which are its attributes; as `tfdist.elastic.ObjectState`, without TensorFlow.

    Args:
        **values: The attributes by name, with their initial values, which must be picklable.

    Example:

    ```python
    state = hvd.elastic.ObjectState(epoch=0, best=None)
    ```
    """

    def framework(self) -> Framework:
        """PyTorch."""
        return Framework(allgather_object, broadcast_object, _loss_behind, _begin_anew)

    def sync(self) -> None:
        """As `tfdist.elastic.State.sync`."""
        count_alike()  # a newcomer has numbered fewer than the others
        super().sync()


class TorchState(ObjectState):
    """A state of models, optimizers, samplers and Python objects.

    Gradients are no part of it: they are removed when training continues.

    Args:
        model: A model, or None.
        optimizer: Its optimizer, or None; best the one that `DistributedOptimizer` has returned.
        **values: More of them, and Python objects, which must be picklable. What has `state_dict` and
            `load_state_dict`, such as an `ElasticSampler` or a scheduler of the learning rate, is part of it by these.

    Attributes:
        model, optimizer, ...: What was given. Those with a `state_dict` may be replaced by others of the same kind.

    Raises:
        ConfigError: For `torch.optim.LBFGS`, whose state cannot be sent.

    Example:

    ```python
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    ```
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        parts = {name: part for name, part in given.items() if _has_state(part)}
        for name, part in given.items():
            if isinstance(part, torch.optim.LBFGS):
                raise ConfigError(f"TorchState received {name}=torch.optim.LBFGS, whose state cannot be sent.")
            if name in ("model", "optimizer") and part is not None and name not in parts:
                raise ConfigError(
                    f"TorchState received {name}={part!r}; expected one with state_dict and load_state_dict, or None. "
                    "Pass other objects under another name."
                )
        self._part_names = tuple(parts)
        self._kept_parts: dict[str, Any] = {}
        super().__init__(**{name: value for name, value in values.items() if name not in parts})
        self.model, self.optimizer = model, optimizer
        for name, part in parts.items():
            setattr(self, name, part)
        self._keep()

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._part_names}

    def _keep(self) -> None:
        kept = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts().items()}
        super()._keep()
        self._kept_parts = kept

    def _put_back(self) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(copy.deepcopy(self._kept_parts[name]))
            if isinstance(part, torch.nn.Module):
                part.zero_grad(set_to_none=True)
        super()._put_back()

    def _receive(self, root: int) -> None:
        for name, part in self._parts().items():
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), root)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, root)
            else:
                part.load_state_dict(broadcast_object(part.state_dict(), root, name=f"{name} of the state"))
        super()._receive(root)

    def _kept_content(self) -> dict[str, Any]:
        tensors: list[torch.Tensor] = []
        outline = without_tensors(self._kept_parts, tensors)
        return {**super()._kept_content(), "parts": outline, "tensors": [_bytes_of(tensor.cpu()) for tensor in tensors]}

    def _adopt(self, content: dict[str, Any]) -> None:
        found = content.get("parts", {})
        if found.keys() != set(self._part_names):
            raise ConfigError(
                f"a commit of this job has the states of {', '.join(sorted(found)) or 'nothing'}, but the state has "
                f"{', '.join(sorted(self._part_names)) or 'none'}. If the script was changed, start the job from "
                "scratch, with an empty --backup-dir."
            )
        super()._adopt(content)
        tensors: list[torch.Tensor] = []
        self._kept_parts = with_tensors(found, tensors)
        for tensor, stored in zip(tensors, content["tensors"], strict=True):
            _bytes_of(tensor)[:] = stored


def _has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Its memory, if it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _loss_behind(error: BaseException) -> TfdistError | None:
    """PyTorch wraps some errors of hooks and compiled functions, so that only their text is left."""
    return loss.of_engine() if isinstance(error, (TfdistError, RuntimeError)) else None


def _begin_anew() -> None:
    forget_all()
    begin_all_anew()
