"""One row of `tfdist bench allreduce`, and the rows that the options request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.command.bench.measure import size
from tfdist.command.bench.measure.request import Allreduce
from tfdist.errors import ConfigError

# Bytes per element. Compression applies to float32 and float64 only; averages to floating dtypes only.
ELEMENT_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
}
OPERATIONS = ("average", "sum")
COMPRESSIBLE = ("float32", "float64")


@dataclass(frozen=True)
class Case:
    """One row: `tensors` tensors with `size_bytes` in total."""

    size_bytes: int
    tensors: int
    dtype: str
    compression: str

    @property
    def counts(self) -> list[int]:
        """Elements of each tensor: all equal, except that the first ones share the remainder."""
        elements = self.size_bytes // ELEMENT_BYTES[self.dtype]
        return [elements // self.tensors + (index < elements % self.tensors) for index in range(self.tensors)]


def groups_of(request: Allreduce) -> list[list[Case]]:
    """The rows of a request, grouped as by `grouped`."""
    return grouped(request.sizes, request.tensors, request.dtypes, request.compressions)


def grouped(
    sizes: Sequence[int], tensors: Sequence[int], dtypes: Sequence[str], compressions: Sequence[str]
) -> list[list[Case]]:
    """All combinations. Each size and number of tensors forms one group, whose rows are measured in turn.

    A dtype to which no compression applies only gets the row for "none".

    Raises:
        ConfigError: If a size is not a whole number of elements, has fewer elements than tensors, or no row is left.
    """
    groups = []
    for size_bytes in sizes:
        for count in tensors:
            group = []
            for dtype in dtypes:
                _check(size_bytes, count, dtype)
                kinds = [kind for kind in compressions if kind == "none" or dtype in COMPRESSIBLE]
                group += [Case(size_bytes, count, dtype, kind) for kind in kinds]
            if not group:
                raise ConfigError(
                    f"compression applies to {' and '.join(COMPRESSIBLE)}, not to {', '.join(dtypes)}, so nothing is "
                    "measured; add none to --compression"
                )
            groups.append(group)
    return groups


def uncompressed(dtypes: Sequence[str], compressions: Sequence[str]) -> list[str]:
    """The requested dtypes to which the requested compressions do not apply."""
    return [dtype for dtype in dtypes if dtype not in COMPRESSIBLE] if set(compressions) - {"none"} else []


def check_operation(operation: str, dtypes: Sequence[str]) -> None:
    """Raises ConfigError if integers would be averaged."""
    integers = [dtype for dtype in dtypes if "int" in dtype]
    if operation == "average" and integers:
        raise ConfigError(f"an average needs a floating dtype; use --op sum for {', '.join(integers)}")


def _check(size_bytes: int, tensors: int, dtype: str) -> None:
    elements, rest = divmod(size_bytes, ELEMENT_BYTES[dtype])
    if rest:
        raise ConfigError(f"{size.show(size_bytes)} is not a whole number of {dtype} elements; choose another size")
    if elements < tensors:
        raise ConfigError(
            f"{size.show(size_bytes)} is {elements} elements of {dtype}, too few for {tensors} tensors; "
            "use a larger size or fewer --tensors"
        )
