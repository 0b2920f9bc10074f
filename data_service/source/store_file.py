"""Objects of a store in a pipeline: the contents of one, or a local file with a copy of it.

The process that runs the pipeline fetches them, a worker of a data service as well, and keeps copies: `storage/cache`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfdist import config
from tfdist.data_service.source import row_reader
from tfdist.data_service.source.row_reader import Column
from tfdist.native import adapter
from tfdist.storage.cache import Cache
from tfdist.storage.reading import StoreFile
from tfdist.system.local_path import address_of

# How many objects are fetched side by side: each waits for an answer of the store.
FETCHES = 16

_CONTENTS, _FILE, _DONE = b"contents", b"file", b"done"


def contents_of() -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function for pipelines, from the address or path of a file to its contents, both string scalars."""
    return _asking(_CONTENTS)


def reading_files(
    read: Callable[[tf.Tensor], tf.data.Dataset],
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns a function for pipelines, from the address or path of a file to what `read` makes of it.

    The function takes a string scalar, or a vector of an address and the SHA-256 checksum that the object must have, in
    hexadecimal digits; an empty one asks for none.

    Args:
        read: Makes a dataset from the path of a local file.
    """
    file_of, done = _asking(_FILE), _asking(_DONE)

    def read_copy(place: tf.Tensor) -> tf.data.Dataset:
        path = file_of(place)
        end = tf.data.Dataset.from_tensors(path).map(done).filter(lambda _: False)
        # It never has an element, but the type of those of `read`.
        return read(path).concatenate(end.flat_map(lambda _: read(path)))

    return read_copy


def first_bytes(address: str, count: int) -> bytes:
    """How an object begins. Raises StoreError."""
    with StoreFile(address) as file:
        return file.read(count)


def read(parts: Sequence[bytes]) -> list[Column]:
    """Answers a request of a pipeline.

    Args:
        parts: What is wanted, the address or path, and maybe the checksum of the object.

    Raises:
        StoreError: If an object cannot be read, or there is no room for its copy.
        FileNotFoundError: If a file of the disk is missing.
    """
    wanted, place = parts[0], parts[1].decode()
    if wanted == _CONTENTS:
        return [_text(_cache().read(place) if address_of(place) else Path(place).read_bytes())]
    if wanted == _FILE:
        checksum = b"".join(parts[2:]).decode()
        return [_text(str(_cache().path(place, checksum)).encode() if address_of(place) else parts[1])]
    _cache().give_back(Path(place))
    return [_text(b"")]


@functools.cache
def _cache() -> Cache:
    return Cache(config.read().store_cache)


def _asking(wanted: bytes) -> Callable[[tf.Tensor], tf.Tensor]:
    row_reader.open_reader()
    read_rows = adapter.ops().tfdist_read_rows

    @tf.autograph.experimental.do_not_convert
    def ask(place: tf.Tensor) -> tf.Tensor:
        request = tf.concat([[wanted], tf.reshape(place, [-1])], axis=0)
        return read_rows(request=request, dtypes=[tf.string], shapes=[tf.TensorShape([1])])[0][0]

    return ask


def _text(data: bytes) -> Column:
    """One string."""
    ends = np.array([0, len(data)], np.int64)
    values = np.frombuffer(data, np.uint8)
    return Column((1,), values.ctypes.data, len(data), ends.ctypes.data, (ends, values))
