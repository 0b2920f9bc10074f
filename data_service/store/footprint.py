"""The space a dataset takes in memory or on disk, and the space that is free. Stores nothing."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError

_logger = logging.getLogger("tfdist")
_UNITS = ("bytes", "KB", "MB", "GB", "TB")
# Above this part of what is free, storing is worth a warning: others need some of it too.
_WARN_FRACTION = 0.5
# Limit and use of a container, in the two versions of Linux's control groups.
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class Footprint:
    """How large a dataset is.

    Attributes:
        element_bytes: Size of one element.
        elements: Number of elements; None if tf.data does not know it.
        measured: Whether `element_bytes` was measured on the first element rather than derived from the type.
    """

    element_bytes: int
    elements: int | None
    measured: bool

    @property
    def total_bytes(self) -> int | None:
        """Size of all elements; None if their number is unknown."""
        return None if self.elements is None else self.element_bytes * self.elements

    def __str__(self) -> str:
        source = "as large as the first" if self.measured else "by their type"
        if self.total_bytes is None:
            return f"{in_words(self.element_bytes)} per element ({source}), for an unknown number of elements"
        return f"{in_words(self.total_bytes)}: {self.elements} elements of {in_words(self.element_bytes)} ({source})"


def footprint(dataset: tf.data.Dataset) -> Footprint:
    """How much memory or disk the elements of a dataset take together.

    If the element types have fixed shapes and no strings, nothing is read. Otherwise the first element is read, which
    runs the pipeline: from a named job of a data service that element is lost to the other trainers.

    Args:
        dataset: A finite `tf.data.Dataset`.

    Raises:
        ConfigError: If the dataset is endless.

    Example:

    ```python
    print(tfdist.data_service.footprint(dataset))  # 3.2 GB: 10000 elements of 320 KB (by their type)
    ```
    """
    elements = int(dataset.cardinality())
    if elements == tf.data.INFINITE_CARDINALITY:
        raise ConfigError("An endless dataset cannot be stored: put .repeat() after cache or load, not before.")
    fixed = _bytes_by_type(dataset.element_spec)
    measured = 0
    if fixed is None:
        measured = sum(_bytes_of(element) for element in dataset.take(1))
    return Footprint(measured if fixed is None else fixed, elements if elements >= 0 else None, fixed is None)


def check_space(what: str, needed: Footprint, where: str, free_bytes: int) -> None:
    """Logs how much space will be taken; rejects what does not fit.

    Args:
        what: What takes the space, for messages.
        needed: The space needed.
        where: "memory", or the folder.
        free_bytes: Bytes that are free there.

    Raises:
        ConfigError: If less space is free than needed.
    """
    text = f"{what} will take {needed}, in {where}, where {in_words(free_bytes)} are free."
    least = needed.element_bytes if needed.total_bytes is None else needed.total_bytes
    if least > free_bytes:
        raise ConfigError(f"{text} Use fewer or smaller elements, or store them where there is room.")
    if needed.total_bytes is None or least > _WARN_FRACTION * free_bytes:
        _logger.warning("%s", text)
    else:
        _logger.info("%s", text)


def free_memory() -> int:
    """Bytes of memory available to this process: the rest of the machine's memory, or of the container's limit if
    less.
    """
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) << 10
    for limit, used in _CGROUP_FILES:
        limit_text = (_CGROUP / limit).read_text().strip() if (_CGROUP / limit).is_file() else "max"
        if limit_text != "max":
            available = min(available, int(limit_text) - int((_CGROUP / used).read_text()))
    return max(0, available)


def free_disk(folder: str | os.PathLike[str]) -> int:
    """Bytes that are free where a folder is, or would be created."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def in_words(count: int) -> str:
    """A human-readable number of bytes, such as "3.2 GB"."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def _bytes_by_type(spec: Any) -> int | None:
    total = 0
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or part.dtype == tf.string or not part.shape.is_fully_defined():
            return None
        total += part.shape.num_elements() * part.dtype.size
    return total


def _bytes_of(element: Any) -> int:
    total = 0
    for value in tf.nest.flatten(element, expand_composites=True):
        if value.dtype == tf.string:
            # A string costs its bytes and what says where they are.
            total += int(tf.reduce_sum(tf.strings.length(value))) + 24 * int(tf.size(value))
        else:
            total += int(tf.size(value)) * value.dtype.size
    return total
