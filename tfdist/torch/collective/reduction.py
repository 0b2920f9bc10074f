"""Which reduction the arguments of a collective mean, and how integers are averaged and scaled.

The engine averages and scales floating tensors. For integers the rule is Horovod's: scaled as float64 and cut off
towards zero; an average without a factor is the exact quotient, cut off. Sums wrap around as those of one process do;
those of averages are in int64, so that they do not where the average fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tfdist.errors import ConfigError
from tfdist.native.collective import Reduction
from tfdist.ops.reduction import Average, ReduceOp, Sum
from tfdist.torch.collective.tensor import dtype_of


@dataclass(frozen=True)
class Scaling:
    """A reduction with its factors, as the arguments of a collective have them.

    Attributes:
        op: How to reduce.
        prescale: Multiplies the tensors.
        postscale: Multiplies the results.
        size: The number of ranks.
        compression: The name of the wire type.
    """

    op: ReduceOp
    prescale: float
    postscale: float
    size: int
    compression: str = "none"

    def of_engine(self, floating: bool) -> Reduction:
        """What the engine does, with floating tensors or with integers."""
        if floating or not self.changes_integers():
            return Reduction(self.op.value, self.compression, float(self.prescale), float(self.postscale))
        return Reduction((Sum if self.op is Average else self.op).value, self.compression)

    def changes_integers(self) -> bool:
        """Whether integers need more than the engine's reduction, which then is that of `of_engine`."""
        return self.op is Average or self.prescale != 1 or self.postscale != 1

    def check(self, tensor: torch.Tensor, name: str) -> None:
        """Refuses truth values where integers would be scaled.

        Raises:
            ConfigError: Names the tensor.
        """
        if tensor.dtype == torch.bool and self.changes_integers():
            raise ConfigError(
                f"{name} has dtype bool, which has no average and takes no factors. Pass op=Sum for 'or', op=Min for "
                "'and', or cast the tensor."
            )

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor sends."""
        if tensor.is_floating_point():
            return tensor
        dtype = torch.int64 if self.op is Average else tensor.dtype
        return tensor.to(dtype) if self.prescale == 1 else (tensor.double() * self.prescale).to(dtype)

    def after(self, reduced: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The result for a tensor of this dtype, from what the engine has reduced."""
        if dtype.is_floating_point:
            return reduced
        if self.postscale != 1:
            factor = self.postscale / (self.size if self.op is Average else 1)
            return (reduced.double() * factor).to(dtype)
        if self.op is not Average:
            return reduced
        return torch.div(reduced, self.size, rounding_mode="trunc").to(dtype)

    def name(self, tensor: torch.Tensor, name: str) -> str:
        """By which the ranks know what a tensor sends: with its dtype, which they compare, where they do not see it."""
        widened = self.op is Average and not tensor.is_floating_point() and tensor.dtype != torch.int64
        return f"{name} of {dtype_of(tensor, name)}" if widened else name
