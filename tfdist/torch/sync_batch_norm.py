"""Batch normalisation over the batches of all ranks. Not a collective: it uses two.

Each rank computes count, mean and sum of squared deviations of its own batch; one allgather combines them into those of
the concatenated batch, and one all-reduce handles their gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from tfdist.errors import ConfigError
from tfdist.ops.reduction import Sum
from tfdist.torch.collective.allgather import gather_rows
from tfdist.torch.collective.allreduce import allreduce
from tfdist.world import runtime

# One at a time: forward and backward pass wait for them.
_LABEL = "sync_batch_norm"


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics cover the training batches of all ranks; dimension 1 has the channels.

    You need it if each rank's batch is too small for its own mean and variance. Output, running statistics and
    gradients equal those of `torch.nn.BatchNorm1d`, `2d` and `3d` on the concatenated batches of the ranks. Batches may
    differ in size; an empty one, or that of a rank that has joined, counts as nothing. With `eval()` it communicates
    nothing; in a world of one it is ordinary batch normalisation. A state loads into either.

    All ranks must call it in training the same number of times, forward and backward. As of any layer, the gradients of
    weight and bias are those of this rank's samples: `DistributedOptimizer` averages them. Gradients of gradients are
    refused by PyTorch.

    Args:
        num_features: The number of channels.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics; None averages all batches alike.
        affine: Whether it has weight and bias.
        track_running_stats: Whether it keeps running statistics for `eval()`.
        **kwargs: As for `torch.nn.BatchNorm2d`: `device`, `dtype`.

    Raises:
        ConfigError: On another shape; in training, on every rank, if all together have one value per channel.
        NotInitializedError: When it is called in training before `init()`.

    Example:

    ```python
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), hvd.SyncBatchNorm(32), torch.nn.ReLU())
    ```

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167; the statistics are combined by the formula of Chan, Golub and
    LeVeque 1979 (Stanford CS-TR-79-773): with N = sum n_i, the mean is sum n_i m_i / N and the sum of squared
    deviations sum (s_i + n_i (m_i - mean)^2).
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 -- the name is PyTorch's
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ConfigError(
                f"SyncBatchNorm({self.num_features}) received a tensor of shape {tuple(input.shape)}; expected "
                f"(samples, {self.num_features}, ...)."
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- the name is PyTorch's
        """Normalises a batch; in training every rank must call it.

        Args:
            input: Tensor of shape (samples, channels, ...) and a floating dtype.
        """
        self._check_input_dim(input)
        if not self.training or runtime.size() == 1:
            normalised: torch.Tensor = super().forward(input)
            return normalised
        count, mean, variance = _statistics(input.detach())
        self._track(count, mean, variance)
        return _Normalise.apply(input, self.weight, self.bias, mean, variance, (count, self.eps))

    @torch.no_grad()
    def _track(self, count: float, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.num_batches_tracked is None or count == 0:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
            running.lerp_(new.to(running.dtype), share)


def _statistics(batch: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """How many values a channel has on all ranks, their mean and variance, at least in float32."""
    channels = batch.shape[1]
    wide = batch.to(_wide(batch))
    own = torch.zeros(3, channels, dtype=torch.float64, device=batch.device)
    if batch.numel():
        variance, mean = torch.var_mean(wide, _all_but_channels(batch), correction=0)
        own[0] = batch.numel() // channels
        own[1], own[2] = mean, variance * own[0]
    gathered, _ = gather_rows(own[None], _LABEL)
    counts, means, deviations = gathered.unbind(1)
    total = counts.sum(0)
    count = float(total[0])
    if count == 1:
        raise ConfigError(
            f"SyncBatchNorm received one value per channel, on all ranks together, in a batch of shape "
            f"{tuple(batch.shape)} here; expected two or more in training. Use larger batches."
        )
    mean = (counts * means).sum(0) / total.clamp(min=1)
    variance = (deviations + counts * (means - mean).square()).sum(0) / total.clamp(min=1)
    return count, mean.to(wide.dtype), variance.to(wide.dtype)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _all_but_channels(batch: torch.Tensor) -> list[int]:
    return [0, *range(2, batch.dim())]


class _Normalise(torch.autograd.Function):
    """Its gradient counts that this rank's values fed mean and variance of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        count_and_eps: tuple[float, float],
    ) -> torch.Tensor:
        count, eps = count_and_eps
        ctx.save_for_backward(batch, weight, mean, torch.rsqrt(variance + eps))
        ctx.count = max(count, 1.0)
        scale, shift = (None if each is None else each.to(mean.dtype) for each in (weight, bias))
        return functional.batch_norm(batch, mean, variance, scale, shift, training=False, eps=eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        batch, weight, mean, inverse = ctx.saved_tensors
        shape, places = [1, -1, *[1] * (batch.dim() - 2)], _all_but_channels(batch)
        gradient = upstream.to(mean.dtype)
        normalised = (batch.to(mean.dtype) - mean.view(shape)) * inverse.view(shape)
        sums = torch.stack([gradient.sum(places), (gradient * normalised).sum(places)])
        of_batch = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            means = allreduce(sums, op=Sum, name=f"gradient of {_LABEL}") / ctx.count
            scale = inverse if weight is None else inverse * weight.to(mean.dtype)
            centred = gradient - means[0].view(shape) - normalised * means[1].view(shape)
            of_batch = (centred * scale.view(shape)).to(batch.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = sums[1].to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = sums[0]
        return of_batch, of_weight, of_bias, None, None, None
