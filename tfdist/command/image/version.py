"""The table of releases that work together in an image.

Determined on 2026-11-22 by querying the package index with pip, for x86-64:

    pip index versions tensorflow-cpu
    pip install --dry-run --ignore-installed --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 ... \
        --python-version 3.13 --report - tensorflow==2.19.1

The report of the second command has the requirements of the wheel: NumPy, Keras, and with `and-cuda` NVIDIA's packages;
it fails if there is no build for that Python. Each row was then resolved as a whole, with everything in the image, for
each of its Python and CUDA versions, and tested with Python 3.11 by training a small model. tensorflow-cpu has no build
for arm64.

docs/containers.md shows this table; update it with `tfdist image versions --markdown docs/containers.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Release:
    """A TensorFlow release.

    Attributes:
        version: As in the package index.
        pythons: The Python versions it has builds for.
        numpy: The newest supported version that was tested.
        cuda: The CUDA versions its packages can install, the default first, each with the matching release of NVIDIA's
            package cuda-toolkit. That is empty if TensorFlow itself pins the version of each package.
        cudnn: The cuDNN version of NVIDIA's packages; a range if TensorFlow accepts one.
    """

    version: str
    pythons: tuple[str, ...]
    numpy: str
    cuda: Mapping[str, str] = field(hash=False)
    cudnn: str

    @property
    def minor(self) -> str:
        return minor(self.version)


@dataclass(frozen=True)
class Python:
    """A Python version: its base image, and the newest packages with builds for it."""

    version: str
    begin: str
    keras: tuple[str, ...]
    numpy: str


_OLD = ("3.10", "3.11", "3.12")
_ALL = (*_OLD, "3.13")
# From 2.20 on, TensorFlow accepts a range, which starts after the packages of cuda-toolkit 12.5.1.
_RANGE = {"12.9": "12.9.1", "12.8": "12.8.1", "12.6": "12.6.3"}

# The first of each list is the default.
RELEASES = (
    Release("2.21.0", _ALL, "2.4.6", _RANGE, "9, the newest"),
    Release("2.20.0", _ALL, "2.4.6", _RANGE, "9, the newest"),
    Release("2.19.1", _OLD, "2.1.3", {"12.5": ""}, "9.3"),
    Release("2.18.1", _OLD, "2.0.2", {"12.5": ""}, "9.3"),
    Release("2.17.1", _OLD, "1.26.4", {"12.3": ""}, "8.9"),
    Release("2.16.2", _OLD, "1.26.4", {"12.3": ""}, "8.9"),
)
_KERAS = ("3.15.1", "3.14.1", "3.13.2", "3.12.4")
# Debian's own Python if there is one, for its security updates.
PYTHONS = (
    Python("3.11", "debian:bookworm-slim", _KERAS, "2.4.6"),
    Python("3.10", "python:3.10-slim-bookworm", ("3.12.4",), "2.2.6"),
    Python("3.12", "python:3.12-slim-bookworm", _KERAS, "2.4.6"),
    Python("3.13", "debian:trixie-slim", _KERAS, "2.4.6"),
)


def minor(version: str) -> str:
    """The first two numbers: 2.21 for 2.21.0."""
    return ".".join(version.split(".")[:2])


def oldest(*versions: str) -> str:
    """The smallest of them, compared as versions and not as text."""
    return min(versions, key=lambda version: [int(number) for number in version.split(".")])
