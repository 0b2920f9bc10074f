"""Datasets of images in folders, one folder per class: a pure tf.data graph, which any worker can run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from tfdist.data_service.source import order, store_file
from tfdist.errors import ConfigError
from tfdist.storage import reading
from tfdist.system.local_path import address_of, local_path

_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
# How files of these kinds begin.
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")
_CHANNELS = (1, 3, 4)


def from_images(
    folder: str | os.PathLike[str],
    image_size: Sequence[int],
    *,
    batch_size: int,
    shuffle: int = 0,
    seed: int | None = None,
    drop_remainder: bool = False,
    channels: int = 3,
) -> tf.data.Dataset:
    """Returns a dataset of the images in the subfolders of a folder, labelled by subfolder.

    Images are decoded and resized in the graph, on all free threads; with `distribute` that happens on the workers,
    which need the folder at the same path. The unit of sharding is a file. Images in an object store are copied to the
    disk of the process that reads them, and kept for later passes while there is room (`TFDIST_STORE_CACHE`).

    Args:
        folder: A path, or an address in an object store such as "s3://bucket/flowers". Has a subfolder for each class,
            with .jpg, .jpeg, .png, .gif or .bmp files in it or below. Only the first frame of a GIF is used.
        image_size: Height and width that all images are resized to (bilinear, ignoring the aspect ratio).
        batch_size: Images per batch.
        shuffle: 0 keeps the order of classes and names. N > 0 puts the files into a random order, the same for all
            passes, and shuffles with a buffer of N file names, differently in each pass.
        seed: Makes the shuffling the same in every process.
        drop_remainder: Whether to drop a last batch with fewer images.
        channels: 1 for grey, 3 for colour, 4 for colour and transparency (PNG only).

    Returns:
        A `tf.data.Dataset` of pairs: float32 images of shape `[batch_size, height, width, channels]` from 0 to 255, and
        int32 labels of shape `[batch_size]`: the index of the class in `dataset.class_names`, the sorted names of the
        subfolders.

    Raises:
        ConfigError: If the folder does not contain such files.
        StoreError: If a store cannot be read.

    Example:

    ```python
    dataset = tfdist.data_service.from_images("flowers", (224, 224), batch_size=32, shuffle=1000, seed=1)
    dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    model.fit(tfdist.data_service.distribute(dataset, "dispatcher:5050").prefetch(2))
    ```
    """
    if len(image_size) != 2 or min(image_size) < 1 or channels not in _CHANNELS or batch_size < 1 or shuffle < 0:
        raise ConfigError(
            "from_images: image_size must be (height, width), batch_size 1 or more, shuffle 0 or more and channels one "
            f"of {_CHANNELS}; received {tuple(image_size)}, {batch_size}, {shuffle} and {channels}."
        )
    address = address_of(folder)
    if address is None:
        names, paths, labels = _files(local_path(folder, "from_images: folder"))
    else:
        names, paths, labels = _objects(address)
    if shuffle:
        places = order.draw(len(paths), seed)[0]
        paths, labels = [paths[place] for place in places], [labels[place] for place in places]
    files = tf.data.Dataset.from_tensor_slices((paths, tf.constant(labels, tf.int32)))
    if shuffle:
        files = files.shuffle(shuffle, seed=seed)
    if address is not None:
        files = _fetched(files)
    height, width = image_size

    def decode(path: tf.Tensor, label: tf.Tensor, content: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        if content is None:
            content = tf.io.read_file(path)
        known = [tf.strings.substr(content, 0, len(beginning)) == beginning for beginning in _BEGINNINGS]
        problem = tf.strings.join([path, " is not a JPEG, PNG, GIF or BMP image."])
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_any(known), [problem])]):
            image = tf.io.decode_image(content, channels, expand_animations=False)
        image.set_shape([None, None, channels])
        resized = tf.image.resize(image, (height, width))
        return tf.ensure_shape(resized, [height, width, channels]), label

    images = files.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    dataset = images.batch(batch_size, drop_remainder=drop_remainder)
    dataset.class_names = names
    return dataset


def _fetched(files: tf.data.Dataset) -> tf.data.Dataset:
    """The files with their contents."""
    contents_of = store_file.contents_of()
    return files.map(
        lambda path, label: (path, label, contents_of(path)),
        num_parallel_calls=store_file.FETCHES,
        deterministic=True,
    )


def _objects(address: str) -> tuple[list[str], list[str], list[int]]:
    """As `_files`, in an object store."""
    root = address.rstrip("/")
    by_class: dict[str, list[str]] = {}
    for each in reading.tree(root):
        name, _, rest = each.removeprefix(f"{root}/").partition("/")
        if rest and not name.startswith("."):
            by_class.setdefault(name, []).append(each)
    return _classes(root, {name: _images(each) for name, each in sorted(by_class.items())})


def _files(folder: Path) -> tuple[list[str], list[str], list[int]]:
    """Names of the classes, paths of all files, and the class of each."""
    if not folder.is_dir():
        raise ConfigError(f"from_images: {folder} is not a folder (working directory: {os.getcwd()}).")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = {name: _images(str(path.absolute()) for path in (folder / name).rglob("*")) for name in names}
    return _classes(str(folder), found)


def _images(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if os.path.splitext(name)[1].lower() in _SUFFIXES)


def _classes(folder: str, found: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str], list[int]]:
    for name, files in found.items():
        if not files:
            raise ConfigError(f"from_images: {folder}/{name} contains no file that ends in {', '.join(_SUFFIXES)}.")
    if not found:
        raise ConfigError(
            f"from_images: {folder} has no subfolders. It must contain one subfolder per class, with the images in it."
        )
    labels = [label for label, files in enumerate(found.values()) for _ in files]
    return list(found), [path for files in found.values() for path in files], labels
