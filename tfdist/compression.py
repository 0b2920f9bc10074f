"""The types gradients may have on the wire."""

from __future__ import annotations

import enum

from tfdist.errors import ConfigError


class Compression(enum.Enum):
    """Wire type of float32 and float64 tensors; other dtypes travel as they are.

    A cast costs at most a relative error of 2^-11 (fp16) or 2^-8 (bf16) for values in range; where tfdist adds, it
    adds in float32. Values beyond 65,504 overflow to infinity in fp16; averages are scaled before they are rounded,
    so a sum does not overflow when its average fits.

    Example:

    ```python
    optimizer = tfdist.DistributedOptimizer(optimizer, compression=tfdist.Compression.fp16)
    ```
    """

    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"

    @classmethod
    def of(cls, value: Compression | str) -> Compression:
        """Accepts a member or its name.

        Raises:
            ConfigError: If it is neither.
        """
        if isinstance(value, cls):
            return value
        names = [member.value for member in cls]
        if isinstance(value, str) and value in names:
            return cls(value)
        raise ConfigError(f"compression must be one of {', '.join(names)}; received {value!r}.")
