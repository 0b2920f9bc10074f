"""The parsed options of each benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# How to predict an allreduce between hosts: as tfdist does it, or as one ring through all GPUs.
SCHEDULES = ("hierarchical", "flat")


@dataclass(frozen=True)
class Allreduce:
    """Options of `tfdist bench allreduce`. `rounds` None: as many as fit into `seconds`, for each size."""

    sizes: tuple[int, ...]
    tensors: tuple[int, ...]
    dtypes: tuple[str, ...]
    compressions: tuple[str, ...]
    operation: str
    rounds: int | None
    seconds: float
    eager: bool
    threads: int
    csv: Path | None
    json: Path | None
    plot: Path | None


@dataclass(frozen=True)
class Train:
    """Options of `tfdist bench train`; `steps` are per round, 0 threads means TensorFlow's default."""

    model: str
    image_size: int
    batch_size: int
    compression: str
    jit_compile: bool
    compare_single: bool
    plain: bool
    steps: int
    rounds: int
    warmup: int
    threads: int
    inter_op_threads: int
    csv: Path | None
    json: Path | None


@dataclass(frozen=True)
class Starts:
    """Options of `tfdist bench train --starts`; `words` are the arguments of each start."""

    words: tuple[str, ...]
    starts: int
    ranks: int
    csv: Path | None
    json: Path | None


@dataclass(frozen=True)
class Record:
    """Options of `tfdist bench scale --record`; `throughput` in images per second, None: measured here."""

    model: str
    image_size: int
    batch_size: int
    throughput: float | None
    steps: int
    warmup: int
    threads: int
    output: Path


@dataclass(frozen=True)
class Scale:
    """Options of `tfdist bench scale --step`; None: `gpus` to suit the cluster, `threshold` from the settings."""

    step: tuple[Path, ...]
    cluster: Path
    gpus: tuple[int, ...] | None
    compressions: tuple[str, ...]
    schedules: tuple[str, ...]
    overlap: bool
    threshold: int | None
    csv: Path | None
    json: Path | None
    plot: Path | None
