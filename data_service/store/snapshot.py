"""Saves the elements of a dataset and loads them again. A snapshot is either complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.data_service.store.footprint import check_space, footprint, free_disk
from tfdist.errors import ConfigError
from tfdist.system.local_path import local_path

_MANIFEST = "tfdist_snapshot.json"
_FORMAT = 1
_COMPRESSIONS = ("", "GZIP", "SNAPPY")
_ORDERS = ("saved", "shards")


def save(dataset: tf.data.Dataset, path: str | os.PathLike[str], shards: int = 1, compression: str = "") -> None:
    """Saves the elements of a dataset in files.

    You need it if many runs share the same preprocessing: do it once, on a cluster with `distribute`, and train from
    the snapshot. It is written beside `path` and renamed once complete, so a snapshot at `path` is always complete.

    Args:
        dataset: A finite `tf.data.Dataset`.
        path: Folder of the snapshot; must not exist.
        shards: Number of files; element i is in file i modulo `shards`. Workers share a snapshot by files.
        compression: "", "GZIP" or "SNAPPY".

    Raises:
        ConfigError: If the path exists, the dataset is endless or empty, or the disk has too little space.

    Example:

    ```python
    tfdist.data_service.save(tfdist.data_service.distribute(dataset, "dispatcher:5050"), "/data/train", shards=8)
    dataset = tfdist.data_service.load("/data/train")
    ```
    """
    target = local_path(path, "save: path").absolute()
    if target.exists():
        raise ConfigError(f"save: {target} already exists. Remove it, or save under another name.")
    if shards < 1 or compression not in _COMPRESSIONS:
        raise ConfigError(
            f"save: shards must be 1 or more and compression one of {_COMPRESSIONS}; received {shards} and "
            f"{compression!r}."
        )
    check_space("save", footprint(dataset), str(target), free_disk(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{_partial_prefix(target)}{uuid.uuid4().hex[:12]}")
    try:
        numbered = dataset.enumerate()
        numbered.save(str(partial), compression=compression or None, shard_func=lambda number, _: number % shards)
        _write_manifest(partial, shards, compression)
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def load(path: str | os.PathLike[str], order: str = "saved") -> tf.data.Dataset:
    """Returns a dataset of the elements of a snapshot that `save` wrote.

    Args:
        path: Folder of the snapshot; workers of a data service need it at the same path.
        order: "saved": the original order; reads all files at once. "shards": one file after another, as needed for
            `distribute(..., sharding="dynamic")` so that each worker reads its own files.

    Returns:
        A `tf.data.Dataset` with the element type of the saved dataset.

    Raises:
        ConfigError: If there is no snapshot, or it is incomplete; names the missing or truncated file.

    Example:

    ```python
    dataset = tfdist.data_service.load("/data/train", order="shards")
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050")
    ```
    """
    if order not in _ORDERS:
        raise ConfigError(f"load: order must be one of {_ORDERS}; received {order!r}.")
    folder = local_path(path, "load: path").absolute()
    manifest = _checked_manifest(folder)
    spec = tf.data.Dataset.load(str(folder), compression=manifest["compression"] or None).element_spec
    # Ragged and sparse tensors are stored as variants.
    variant = tf.TensorSpec(None, tf.variant)
    flat = [part if isinstance(part, tf.TensorSpec) else variant for part in tf.nest.flatten(spec)]
    dtypes, shapes = [part.dtype for part in flat], [part.shape for part in flat]

    def read(file: tf.Tensor) -> tf.data.Dataset:
        elements = tf.raw_ops.SnapshotChunkDataset(
            chunk_file=file, output_types=dtypes, output_shapes=shapes, compression=manifest["compression"]
        )
        return tf.data.experimental.from_variant(elements, spec)

    files = tf.data.Dataset.from_tensor_slices([str(folder / shard["file"]) for shard in manifest["shards"]])
    numbered = files.interleave(read, cycle_length=len(manifest["shards"]) if order == "saved" else 1)
    elements = numbered.map(lambda _, element: element)
    if order == "shards":
        return elements  # of which each worker has a part
    return elements.apply(tf.data.experimental.assert_cardinality(manifest["elements"]))


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _write_manifest(folder: Path, shards: int, compression: str) -> None:
    elements = int(tf.data.Dataset.load(str(folder), compression=compression or None).cardinality())
    if elements < 1:
        raise ConfigError("save: the dataset has no elements.")
    found = sorted(folder.glob("*/*.shard/*.snapshot"), key=lambda file: int(file.parent.stem))
    if len(found) != min(shards, elements):
        raise ConfigError(f"save: {len(found)} files were written in {folder}; expected {min(shards, elements)}.")
    for file in found:
        with open(file, "rb") as written:
            os.fsync(written.fileno())
    manifest = {
        "format": _FORMAT,
        "tensorflow": tf.__version__,
        "elements": elements,
        "compression": compression,
        "shards": [{"file": str(file.relative_to(folder)), "bytes": file.stat().st_size} for file in found],
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))


def _checked_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        cut_off = sorted(entry.name for entry in folder.parent.glob(f"{_partial_prefix(folder)}*"))
        reason = (
            f"it is being saved, or saving was interrupted ({', '.join(cut_off)})" if cut_off else "nothing is there"
        )
        if folder.exists():
            reason = "the folder is not a complete snapshot of tfdist.data_service.save"
        raise ConfigError(f"load: there is no snapshot at {folder}: {reason}. Save it again.")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        known = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"load: {path} cannot be read ({error!r}). Save the snapshot again.") from error
    if known != _FORMAT:
        raise ConfigError(f"load: {folder} has format {known}; this tfdist reads format {_FORMAT}. Save it again.")
    for shard in manifest["shards"]:
        file = folder / shard["file"]
        size = file.stat().st_size if file.is_file() else -1
        if size != shard["bytes"]:
            state = "is missing" if size < 0 else f"has {size} bytes"
            raise ConfigError(
                f"load: the snapshot at {folder} is damaged: {shard['file']} {state}; expected {shard['bytes']}. "
                "Save or copy it again."
            )
    return manifest
