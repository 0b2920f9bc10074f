"""The reductions that collectives offer, under Horovod's names."""

from __future__ import annotations

import enum

from tfdist.errors import ConfigError


class ReduceOp(enum.Enum):
    """How the tensors of the ranks become one."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


def reduction_of(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """How to reduce, from the two arguments that say so.

    Raises:
        ConfigError: If both are given, or `op` is no reduction.
    """
    if average is not None and op is not None:
        raise ConfigError(f"give op or average, not both; received op={op} and average={average}.")
    if average is not None:
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, ReduceOp):
        raise ConfigError(
            f"op must be one of tfdist.{', tfdist.'.join(r.name.title() for r in ReduceOp)}; received {op!r}."
        )
    return op
