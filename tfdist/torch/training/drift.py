"""Notices parameters that differ between the ranks, whatever has made them differ. Changes none."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from tfdist.errors import ConfigError, MismatchError
from tfdist.native import library
from tfdist.torch.collective.allgather import allgather
from tfdist.torch.collective.object import allgather_object
from tfdist.torch.collective.tensor import ready
from tfdist.torch.training.gradient_plan import Named
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet

# Of a rank: its number, its mode, a digest of each parameter.
Told = tuple[int, str, list[int]]

_logger = logging.getLogger("tfdist")
_MODES = ("error", "warn", "off")
# What is less, of the norm of a parameter, may be rounding: processors and GPUs differ in it.
_LARGE = 1e-3
_MOST_NAMES = 5
_BEFORE = (
    "Give all ranks those of one before the first step: hvd.broadcast_parameters(model.state_dict(), root_rank=0)."
)
_AFTER = (
    "Something changes gradients or parameters on single ranks: an edit of grad.data between backward() and step(), "
    "which must follow optimizer.synchronize(); an update that is not this optimizer's; or a state of the optimizer "
    "that differs, see hvd.broadcast_optimizer_state."
)


class Drift:
    """Compares the parameters of all ranks before the first step and after steps 1, 2, 4, 8 and so on.

    Each rank tells a digest of every parameter; only those whose digests differ are compared by value.

    Args:
        named: The parameters.
        label: The name of the optimizer.
        process_set: The ranks that take part.
        mode: "error", "warn", or "off".

    Raises:
        ConfigError: If `mode` is another.
    """

    def __init__(self, named: Sequence[Named], label: str, process_set: ProcessSet, mode: str) -> None:
        if mode not in _MODES:
            raise ConfigError(f"drift must be one of {', '.join(map(repr, _MODES))}; received {mode!r}.")
        self._named, self._label, self._process_set = named, label, process_set
        self._mode, self._steps, self._warned = mode, 0, False

    def _is_on(self) -> bool:
        """The number of ranks of an elastic job may change."""
        return self._mode != "off" and self._process_set.size() > 1

    def begin_anew(self) -> None:
        """The ranks have changed: those that are new have counted no steps."""
        self._steps = 0

    def digests(self) -> Told:
        """The number of this rank among all, its mode, and a digest of each of its parameters."""
        tensors = [ready(named.parameter, named.name) for named in self._named] if self._is_on() else []
        digests = [library.digest(each.data_ptr(), each.numel() * each.element_size()) for each in tensors]
        return runtime.rank(), self._mode, digests

    def before_first_step(self, told: Sequence[Told]) -> None:
        """Compares what `digests` has returned on the ranks.

        Raises:
            MismatchError: On every rank, if parameters differ by more than rounding, or the ranks have other modes.
        """
        modes = {mode for _, mode, _ in told}
        if len(modes) > 1:
            raise MismatchError(
                f"{self._label}: the ranks have drift={' and '.join(map(repr, sorted(modes)))}; give all the same."
            )
        self._compare(told, "before the first step", _BEFORE)

    def after_step(self) -> None:
        """Compares the ranks, if it is time to.

        Raises:
            MismatchError: On every rank, if parameters differ by more than rounding.
        """
        self._steps += 1
        if self._is_on() and self._steps & (self._steps - 1) == 0:
            told = allgather_object(self.digests(), f"{self._label} digests", self._process_set)
            self._compare(told, f"after step {self._steps}", _AFTER)

    def _compare(self, told: Sequence[Told], when: str, remedy: str) -> None:
        ranks, _, digests = zip(*told, strict=True)
        rows = zip(*digests, strict=True)  # none where the mode is "off"
        differing = [named for named, row in zip(self._named, rows, strict=False) if len(set(row)) > 1]
        if not differing:
            return
        found = [(named, dict(zip(ranks, self._distances(named), strict=True))) for named in differing]
        lines = [
            f"    {named.outline()}: " + ", ".join(f"rank {rank} {far:.2g}" for rank, far in distances.items() if far)
            for named, distances in found[:_MOST_NAMES]
        ]
        more = len(found) - len(lines)
        text = (
            f"{self._label}: {when} {len(found)} of {len(self._named)} parameters differ between the ranks. "
            f"Difference, relative to the norm on rank {ranks[0]}:\n"
            + "\n".join(lines)
            + (f"\n    and {more} more" if more else "")
        )
        large = any(not far <= _LARGE for _, distances in found for far in distances.values())
        if large and self._mode == "error":
            raise MismatchError(f"{text}\n{remedy} If it is on purpose: DistributedOptimizer(..., drift='off').")
        if not self._warned:
            self._warned = True
            _logger.warning("%s\n%s%s", text, "" if large else "It may be rounding, where processors differ. ", remedy)

    def _distances(self, named: Named) -> list[float]:
        """Of the parameter of each rank from that of the first: the same on all ranks."""
        rows = allgather(named.parameter.detach()[None], f"{self._label} {named.name}", self._process_set).double()
        norm = rows[0].norm()
        return [float((row - rows[0]).norm() / norm) if not torch.equal(row, rows[0]) else 0.0 for row in rows]
