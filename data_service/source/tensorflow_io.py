"""The readers of tensorflow-io, for the one environment where it loads. Anywhere else they raise an error."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.data_service.source import file_list
from tfdist.errors import BuildError, ConfigError

# Its last release, and the TensorFlow that was built for.
_RELEASE = "0.37"
_TENSORFLOW = "2.16"
_INSTALL = "pip install 'tfdist[cpu,io]'"

# By kind: how files end in a folder, and how they begin. Some readers end the process at another beginning. Kinds whose
# reader takes two files for one (audio) are left out.
_KINDS: dict[str, tuple[str, tuple[bytes, ...]]] = {
    "avro": (".avro", (b"Obj\x01",)),
    "hdf5": (".h5", (b"\x89HDF\r\n\x1a\n",)),
    "json": (".json", (b"",)),
    "orc": (".orc", (b"ORC",)),
    "parquet": (".parquet", (b"PAR1",)),
}
_LONGEST_BEGINNING = 8


def from_io(
    kind: str, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any
) -> tf.data.Dataset:
    """Returns a dataset of the records that a reader of tensorflow-io finds in files, one file after another.

    You need it for formats that neither TensorFlow nor pyarrow reads. It runs only in the trainer: the readers keep
    state that cannot move to the workers of a data service. For Parquet, `from_parquet` is faster and runs anywhere.

    Args:
        kind: "avro", "hdf5", "json", "orc" or "parquet".
        files: A path, a pattern, a folder, or a list of them.
        **options: Further arguments of `tensorflow_io.IODataset.from_<kind>`, such as `schema` for "avro" or `columns`
            for "parquet" and "json".

    Returns:
        A `tf.data.Dataset` of single records, as that function makes them.

    Raises:
        BuildError: If tensorflow-io does not load; names the versions it needs.
        ConfigError: If there is no such kind or file, or a file is not of that kind.

    Example:

    ```python
    dataset = tfdist.data_service.from_io("avro", "data/*.avro", schema=schema, columns=["label"]).batch(64)
    ```
    """
    if kind not in _KINDS:
        raise ConfigError(f"from_io: kind must be one of {', '.join(_KINDS)}; received {kind!r}.")
    suffix, beginnings = _KINDS[kind]
    reader = getattr(_tensorflow_io().IODataset, f"from_{kind}")
    dataset: tf.data.Dataset | None = None
    for path in file_list.find("from_io", files, suffix):
        _check_beginning(kind, path, beginnings)
        try:
            part = reader(path, **options)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise ConfigError(f"from_io: {path} cannot be read as {kind} with {options}: {error}") from error
        dataset = part if dataset is None else dataset.concatenate(part)
    return dataset


def _check_beginning(kind: str, path: str, beginnings: tuple[bytes, ...]) -> None:
    with open(path, "rb") as file:
        found = file.read(_LONGEST_BEGINNING)
    if not found.startswith(beginnings):
        raise ConfigError(
            f"from_io: {path} is not a file of kind {kind!r}: it begins with {found!r}; expected one of {beginnings}."
        )


def _tensorflow_io() -> ModuleType:
    """Imports tensorflow-io; checks versions first, because its libraries crash or are not found with any other
    TensorFlow.
    """
    try:
        found = metadata.version("tensorflow-io")
    except metadata.PackageNotFoundError:
        found = "no"
    if not _is(found, _RELEASE) or not _is(tf.__version__, _TENSORFLOW):
        raise BuildError(
            f"from_io needs tensorflow-io {_RELEASE}, its last release, which loads only with TensorFlow "
            f"{_TENSORFLOW}; found {found} tensorflow-io and TensorFlow {tf.__version__}. Create an environment for "
            f"it, with Python 3.12 or older: {_INSTALL}. For Parquet use from_parquet, which needs pyarrow and runs "
            "everywhere; docs/data-service.md says what reads other formats with a newer TensorFlow."
        )
    try:
        return importlib.import_module("tensorflow_io")
    except ImportError as error:
        raise BuildError(f"tensorflow-io could not be imported: {error}. Reinstall it: {_INSTALL}") from error


def _is(version: str, release: str) -> bool:
    return re.match(rf"{re.escape(release)}(\.|$)", version) is not None
