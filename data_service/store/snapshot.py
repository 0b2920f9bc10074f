"""Saves the elements of a dataset and loads them again. A snapshot is either complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

from tfdist.data_service.source import store_file
from tfdist.data_service.store.footprint import check_space, footprint, free_disk
from tfdist.data_service.store.relay import relay
from tfdist.data_service.store.snapshot_place import described, open_place
from tfdist.errors import ConfigError

_COMPRESSIONS = ("", "GZIP", "SNAPPY")
_ORDERS = ("saved", "shards")


def save(dataset: tf.data.Dataset, path: str | os.PathLike[str], shards: int = 1, compression: str = "") -> None:
    """Saves the elements of a dataset in files.

    You need it if many runs share the same preprocessing: do it once, on a cluster with `distribute`, and train from
    the snapshot. It is written beside `path` and renamed once complete, so a snapshot at `path` is always complete. At
    an address it is written to the temporary folder (`TMPDIR`) and then uploaded: it is there once its last object is.

    Each element costs 0.2 ms beside its own time, so save batches rather than many small samples.

    Args:
        dataset: A finite `tf.data.Dataset`.
        path: Folder of the snapshot, which must not exist; or an address in an object store, such as
            "s3://bucket/train", where no snapshot may be.
        shards: Number of files; element i is in file i modulo `shards`. Workers share a snapshot by files.
        compression: "", "GZIP" or "SNAPPY".

    Raises:
        ConfigError: If the path exists, the dataset is endless or empty, or the disk has too little space.
        StoreError: If a store cannot be written; it is tried before the dataset is read.
        Exception: What the dataset raised.

    Example:

    ```python
    tfdist.data_service.save(tfdist.data_service.distribute(dataset, "dispatcher:5050"), "/data/train", shards=8)
    dataset = tfdist.data_service.load("/data/train")
    ```
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigError(f"save: dataset must be a tf.data.Dataset; received {type(dataset).__name__}.")
    if shards < 1:
        raise ConfigError(f"save: shards must be 1 or more; received {shards}.")
    if compression not in _COMPRESSIONS:
        raise ConfigError(f"save: compression must be one of {_COMPRESSIONS}; received {compression!r}.")
    place = open_place("save", path)
    place.check()
    with place.begin() as folder:
        check_space("save", footprint(dataset), str(folder), free_disk(folder))

        def write(elements: tf.data.Dataset) -> None:
            numbered = elements.enumerate()
            numbered.save(str(folder), compression=compression or None, shard_func=lambda number, _: number % shards)

        elements = relay(dataset, write)
        place.finish(folder, described(folder, _shards_in(folder, shards, elements), elements, compression))


def load(path: str | os.PathLike[str], order: str = "saved") -> tf.data.Dataset:
    """Returns a dataset of the elements of a snapshot that `save` wrote.

    Args:
        path: Folder of the snapshot, which workers of a data service need at the same path; or an address in an object
            store, whose files are copied to the disk of the process that reads them, and kept for later passes while
            there is room (`TFDIST_STORE_CACHE`).
        order: "saved": the original order; reads all files at once. "shards": one file after another, as needed for
            `distribute(..., sharding="dynamic")` so that each worker reads its own files.

    Returns:
        A `tf.data.Dataset` with the element type of the saved dataset.

    Raises:
        ConfigError: If there is no snapshot, or it is incomplete; names the missing or truncated file.
        StoreError: If a store cannot be read.

    Example:

    ```python
    dataset = tfdist.data_service.load("/data/train", order="shards")
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050")
    ```
    """
    if order not in _ORDERS:
        raise ConfigError(f"load: order must be one of {_ORDERS}; received {order!r}.")
    place = open_place("load", path)
    manifest = place.read()
    spec = place.types(manifest)
    # Ragged and sparse tensors are stored as variants.
    variant = tf.TensorSpec(None, tf.variant)
    flat = [part if isinstance(part, tf.TensorSpec) else variant for part in tf.nest.flatten(spec)]
    dtypes, shapes = [part.dtype for part in flat], [part.shape for part in flat]

    def read(file: tf.Tensor) -> tf.data.Dataset:
        elements = tf.raw_ops.SnapshotChunkDataset(
            chunk_file=file, output_types=dtypes, output_shapes=shapes, compression=manifest["compression"]
        )
        return tf.data.experimental.from_variant(elements, spec)

    files = [[place.path_of(shard["file"]), shard.get("sha256", "")] for shard in manifest["shards"]]
    side_by_side = len(files) if order == "saved" else 1
    if place.is_store:
        numbered = tf.data.Dataset.from_tensor_slices(files).interleave(
            store_file.reading_files(read), side_by_side, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
    else:
        numbered = tf.data.Dataset.from_tensor_slices([path for path, _ in files]).interleave(read, side_by_side)
    elements = numbered.map(lambda _, element: element)
    if order == "shards":
        return elements  # of which each worker has a part
    return elements.apply(tf.data.experimental.assert_cardinality(manifest["elements"]))


def _shards_in(folder: Path, shards: int, elements: int) -> list[Path]:
    """The files that were written, by their number."""
    if elements < 1:
        raise ConfigError("save: the dataset has no elements.")
    found = sorted(folder.glob("*/*.shard/*.snapshot"), key=lambda file: int(file.parent.stem))
    if len(found) != min(shards, elements):
        raise ConfigError(f"save: {len(found)} files were written in {folder}; expected {min(shards, elements)}.")
    return found
