"""Keeps what a pipeline, or a cluster, has produced, so that later passes read it from memory or disk."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

from tfdist.data_service.store.footprint import check_space, footprint, free_disk, free_memory
from tfdist.errors import ConfigError
from tfdist.system.local_path import local_path
from tfdist.system.rank import job_place

_NAME = "elements"
_TYPES = "element_spec.txt"


def cache(dataset: tf.data.Dataset, where: str | os.PathLike[str] = "memory") -> tf.data.Dataset:
    """Keeps the elements of the first pass over a dataset for the passes that follow.

    You need it if producing the elements takes longer than training on them and there is room for them. After
    `distribute` the trainer keeps what the cluster produced. Before it each worker would keep its own part:
    `distribute` accepts that only in memory, and not with dynamic sharding, which assigns different parts in each pass.

    The space it will take is logged before the first pass, by the logger `tfdist`: as a warning if it is more than half
    of what is free or if the number of elements is unknown. See `footprint` for when that reads an element.

    Args:
        dataset: A finite `tf.data.Dataset`. Put what should differ from pass to pass, such as augmentation, after the
            cache.
        where: "memory", or a folder used only by this dataset, on a disk of this machine. Later processes reuse the
            folder; remove it when the data or the pipeline has changed. In a job of several ranks each rank has its own
            subfolder, such as "rank-3-of-8", because ranks may read different elements; a job of another size fills
            other subfolders.

    Returns:
        A `tf.data.Dataset` of the same elements. Only a complete pass is kept.

    Raises:
        ConfigError: If there is not enough space, if the dataset is endless, if the folder contains something else, or
            if this is a rank of a job whose launcher does not say which one.

    Example:

    ```python
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050")
    dataset = tfdist.data_service.cache(dataset).shuffle(1000).prefetch(2)
    ```
    """
    if os.fspath(where) == "memory":
        check_space("cache", footprint(dataset), "memory", free_memory())
        return dataset.cache()
    folder = local_path(where, "cache: where").absolute() / _part_of_rank()
    types = repr(dataset.element_spec)
    if not (folder / f"{_NAME}.index").exists():
        check_space("cache", footprint(dataset), str(folder), free_disk(folder))
    _check_folder(folder, types)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _TYPES).write_text(types)
    return dataset.cache(str(folder / _NAME))


def _part_of_rank() -> str:
    """The subfolder of this rank; "" if this process is the only one."""
    place = job_place.of_job()
    if place is None and job_place.is_rank():
        raise ConfigError(
            "cache: this process is a rank of a job, but its launcher does not set its rank and the number of ranks "
            "(Open MPI sets OMPI_COMM_WORLD_RANK and _SIZE, MPICH and Slurm PMI_RANK and PMI_SIZE), so all ranks "
            "would write the same folder. Start the job with tfdistrun, or cache in memory."
        )
    return "" if place is None or place[1] == 1 else f"rank-{place[0]}-of-{place[1]}"


def _check_folder(folder: Path, types: str) -> None:
    known = folder / _TYPES
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f'cache: {folder} is a file; where must be "memory" or a folder.')
    if folder.is_dir() and any(folder.iterdir()) and not known.is_file():
        raise ConfigError(
            f"cache: {folder} contains something other than a cache. Choose a folder used for nothing else."
        )
    if known.is_file() and known.read_text() != types:
        raise ConfigError(
            f"cache: {folder} contains elements of another type: {known.read_text()}; this dataset has {types}. "
            "Remove the folder, or choose another."
        )
    if list(folder.glob(f"{_NAME}*.lockfile")):
        raise ConfigError(
            f"cache: {folder} is being written by another process, or a process was killed while writing it. If no "
            "process is writing it, remove the folder."
        )
