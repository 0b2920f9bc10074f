"""Keeps what a pipeline, or a cluster, has produced, so that later passes take it from memory or disk."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

from tfdist import config
from tfdist.data_service.store.footprint import check_space, footprint, free_disk, free_memory
from tfdist.errors import ConfigError
from tfdist.system.local_path import local_path

_NAME = "elements"
_TYPES = "element_spec.txt"


def cache(dataset: tf.data.Dataset, where: str | os.PathLike[str] = "memory") -> tf.data.Dataset:
    """Keeps the elements of the first pass over a dataset for the passes that follow.

    You need it where producing the elements takes longer than training on them and they fit somewhere. Behind
    `distribute` it is the trainer that keeps what the cluster produced. Before it each worker would keep its own part:
    `distribute` takes that in memory only, and not under dynamic sharding, which deals out other parts in each pass.

    What it will take is said before the first pass, through the logger `tfdist`: a warning where it is more than half
    of what is free or where the number of elements is not known. See `footprint` for when that reads an element.

    Args:
        dataset: A finite `tf.data.Dataset`. What should differ from pass to pass, such as augmentation, comes behind.
        where: "memory", or a folder of this dataset's own on a disk of this machine. A folder is used again by later
            processes; remove it when the data or the pipeline has changed. In a job of several ranks each rank has a
            folder of its own in it, "rank-3-of-8", because ranks may read different elements; a job of another size
            fills folders of its own.

    Returns:
        A `tf.data.Dataset` of the same elements. Only a pass that went to the end is kept.

    Raises:
        ConfigError: If it does not fit, if the dataset is endless, if the folder holds something else, or if this is a
            rank of a job and its launcher does not say which.

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
    """The folder of this rank in the one that was named; "" where this process is the only one."""
    place = config.launcher_place()
    if place is None and config.started_by_launcher():
        raise ConfigError(
            "cache: this process is one rank of a job, and its launcher does not say which one of how many (Open MPI "
            "sets OMPI_COMM_WORLD_RANK and _SIZE, MPICH and Slurm PMI_RANK and PMI_SIZE), so that all ranks would "
            "write one folder. Start the job with tfdistrun, or cache in memory."
        )
    return "" if place is None or place[1] == 1 else f"rank-{place[0]}-of-{place[1]}"


def _check_folder(folder: Path, types: str) -> None:
    known = folder / _TYPES
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f'cache: {folder} is a file; where must be "memory" or a folder.')
    if folder.is_dir() and any(folder.iterdir()) and not known.is_file():
        raise ConfigError(f"cache: {folder} holds something else than a cache. Name a folder of its own.")
    if known.is_file() and known.read_text() != types:
        raise ConfigError(
            f"cache: {folder} holds elements of another type: {known.read_text()}; this dataset has {types}. Remove "
            "the folder, or name another."
        )
    if list(folder.glob(f"{_NAME}*.lockfile")):
        raise ConfigError(
            f"cache: {folder} is being written by another process, or was when that process was killed. If none is, "
            "remove the folder."
        )
