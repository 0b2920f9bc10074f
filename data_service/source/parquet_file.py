"""Inspects Parquet files and reads their row groups through `pyarrow`. Independent of TensorFlow."""

from __future__ import annotations

import functools
import json
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfdist.data_service.source.row_reader import Column, column_of
from tfdist.errors import BuildError, ConfigError
from tfdist.storage.reading import StoreFile
from tfdist.system.local_path import address_of

# Values of time are whole numbers of their own unit, as they are in the file.
_AS_INT32 = ("date32[day]", "time32[s]", "time32[ms]")
_NUMBERS = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
# Of objects in stores, by address, size and version.
_footers: dict[tuple[str, int, str], Any] = {}
_MOST_FOOTERS = 1024


@dataclass(frozen=True)
class ColumnPlan:
    """One column of the dataset.

    Attributes:
        name: Its name in the file and in the dataset.
        dtype: TensorFlow's name of the type.
        shape: Shape of one row.
        fill: Replacement for nulls; None rejects nulls.
        unit: Of times, such as "timestamp[us]"; else empty.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    fill: Any = None
    unit: str = ""

    @property
    def kind(self) -> str:
        """What all files must have alike, for messages."""
        return f"{self.unit or self.dtype} of shape {self.shape}"


@dataclass(frozen=True)
class _Footer:
    """What the footer of a file says; the file is closed."""

    schema_arrow: Any
    metadata: Any
    num_row_groups: int


@dataclass(frozen=True)
class Plan:
    """Everything there is to read.

    Attributes:
        columns: Columns in the order of the dataset.
        files: Absolute paths, or addresses.
        file_of: For each row group, in the order of files, the index of its file.
        group_of: For each row group, its index in its file.
        rows_of: For each row group, its number of rows.
        print_of: For each row group, a number that changes with what its file says of the columns in it.
    """

    columns: tuple[ColumnPlan, ...]
    files: tuple[str, ...]
    file_of: np.ndarray[Any, Any]
    group_of: np.ndarray[Any, Any]
    rows_of: np.ndarray[Any, Any]
    print_of: np.ndarray[Any, Any]


def plan(files: Sequence[str], columns: Sequence[str] | None, fill: Mapping[str, Any]) -> Plan:
    """Reads the footers of the files and checks that all have the same columns.

    Args:
        files: Absolute paths, or addresses.
        columns: Which columns; None reads all.
        fill: Replacement for nulls, by column.

    Raises:
        ConfigError: If a column is missing, has a type without a tensor equivalent or differs between files, or if
            there are nulls without a `fill`.
    """
    footers = [_footer(path) for path in files]
    names = list(columns) if columns is not None else list(footers[0].schema_arrow.names)
    unknown = [name for name in fill if name not in names]
    if not names or len(set(names)) != len(names) or unknown:
        raise ConfigError(
            "from_parquet: columns must be one or more unique names, and fill may only name these; received columns "
            f"{names} and fill for {list(fill)}."
        )
    planned = _columns(files[0], footers[0], names, fill)
    file_of: list[int] = []
    rows_of: list[int] = []
    print_of: list[int] = []
    for index, (path, footer) in enumerate(zip(files, footers, strict=True)):
        _check_same(files[0], planned, path, _columns(path, footer, names, fill))
        _check_nulls(path, footer, planned)
        file_of += [index] * footer.num_row_groups
        rows_of += [footer.metadata.row_group(group).num_rows for group in range(footer.num_row_groups)]
        print_of += [_print(footer.metadata, group, names) for group in range(footer.num_row_groups)]
    groups = [group for footer in footers for group in range(footer.num_row_groups)]
    full = np.flatnonzero(np.array(rows_of))
    if not full.size:
        raise ConfigError(f"from_parquet: there are no rows in {_some(files)}.")
    lists = (file_of, groups, rows_of, print_of)
    return Plan(planned, tuple(files), *(np.array(each, np.int64)[full] for each in lists))


def specification(columns: Sequence[ColumnPlan]) -> str:
    """The columns as text, for `read`."""
    return json.dumps([[each.name, each.dtype, each.shape, each.fill, each.unit] for each in columns])


def read(parts: Sequence[bytes]) -> list[Column]:
    """Reads one window of row groups; shuffles its rows if a seed is given.

    Args:
        parts: The specification; a seed: numbers, "any" or ""; then for each row group its position in the whole order,
            its index in its file, its number of rows, its print and its file.

    Raises:
        ConfigError: If the files have changed since the plan was made.
        FileNotFoundError: If a file is missing.
    """
    arrow = _arrow()
    columns, seed = _parsed(parts[0]), parts[1].decode()
    windows = list(zip(*(parts[start::5] for start in range(2, 7)), strict=True))
    tables = [
        _read_group(columns, int(group), int(rows), int(print_), path.decode())
        for _, group, rows, print_, path in windows
    ]
    table = arrow.concat_tables(tables)
    if seed:
        places = [int(place) for place, *_ in windows]
        numbers = None if seed == "any" else [*map(int, seed.split()), *places]
        table = table.take(arrow.array(np.random.default_rng(numbers).permutation(table.num_rows)))
    where = f"{windows[0][-1].decode()}, row group {windows[0][1].decode()}"
    return [_column(column, table.column(column.name), where) for column in columns]


@functools.lru_cache(maxsize=64)
def _parsed(text: bytes) -> tuple[ColumnPlan, ...]:
    return tuple(ColumnPlan(name, dtype, tuple(shape), *more) for name, dtype, shape, *more in json.loads(text))


def _arrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BuildError(
            f"Reading Parquet needs pyarrow, which could not be imported on {socket.gethostname()}: {error}. Install "
            "it there: pip install pyarrow"
        ) from error
    return pyarrow


def _open(path: str) -> Any:
    arrow = _arrow()
    if address_of(path) is not None:
        return _open_in_store(arrow, path)
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"{path} is not a file on {socket.gethostname()}. Workers of a data service read the files themselves, "
            "so they need them at the same path as the trainer."
        )
    try:
        return arrow.parquet.ParquetFile(path)
    except arrow.ArrowInvalid as error:
        raise ConfigError(f"{path} is not a readable Parquet file: {error}") from error


def _open_in_store(arrow: ModuleType, address: str) -> Any:
    """Reads the footer once in a process, and then only the columns that are asked for, with few requests."""
    file = StoreFile(address)
    try:
        known = _footers.get((address, file.size, file.version)) if file.version else None
        opened = arrow.parquet.ParquetFile(file, metadata=known, pre_buffer=True)
    except arrow.ArrowInvalid as error:
        raise ConfigError(f"{address} is not a readable Parquet file: {error}") from error
    if len(_footers) >= _MOST_FOOTERS:
        _footers.clear()
    _footers[address, file.size, file.version] = opened.metadata
    return opened


def _footer(path: str) -> _Footer:
    with _open(path) as file:
        return _Footer(file.schema_arrow, file.metadata, file.num_row_groups)


def _columns(path: str, footer: _Footer, names: Sequence[str], fill: Mapping[str, Any]) -> tuple[ColumnPlan, ...]:
    schema = footer.schema_arrow
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ConfigError(f"from_parquet: {path} has no column {missing}; it has {schema.names}.")
    return tuple(_column_plan(path, schema.field(name), fill.get(name)) for name in names)


def _column_plan(path: str, field: Any, fill: Any) -> ColumnPlan:
    types = _arrow().types
    kind, shape = field.type, []
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if types.is_dictionary(kind) and not shape:
        kind = kind.value_type
    if types.is_list(kind) or types.is_large_list(kind):
        raise ConfigError(
            f"from_parquet: column {field.name!r} of {path} holds lists of variable length ({field.type}), which "
            "have no fixed tensor shape. Write it as a list of fixed size (pyarrow.list_(type, size)), or exclude it "
            "with columns=[...]."
        )
    dtype = _dtype(kind)
    if dtype is None:
        raise ConfigError(
            f"from_parquet: column {field.name!r} of {path} is of type {field.type}, which has no tensor equivalent. "
            "Cast it when writing the file, or exclude it with columns=[...]."
        )
    if fill is not None and shape:
        raise ConfigError(f"from_parquet: fill only applies to columns of single values; {field.name!r} holds lists.")
    return ColumnPlan(field.name, dtype, tuple(shape), _fill(field.name, dtype, fill), _unit(kind))


def _unit(kind: Any) -> str:
    """The type of times, but for their zone, in which all are written as those of UTC."""
    types = _arrow().types
    if not types.is_temporal(kind):
        return ""
    return f"timestamp[{kind.unit}]" if types.is_timestamp(kind) else str(kind)


def _dtype(kind: Any) -> str | None:
    types = _arrow().types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return "string"
    if str(kind) in _NUMBERS:
        return _NUMBERS[str(kind)]
    if types.is_temporal(kind) and not types.is_interval(kind):
        return "int32" if str(kind) in _AS_INT32 else "int64"
    return None


def _fill(name: str, dtype: str, fill: Any) -> Any:
    """The value in a form that JSON can represent."""
    if fill is None:
        return None
    good = isinstance(fill, str) if dtype == "string" else isinstance(fill, (bool, int, float, np.number, np.bool_))
    if not good or (dtype != "string" and "float" not in dtype and not _holds(dtype, fill)):
        raise ConfigError(f"from_parquet: fill for column {name!r} must be a value of {dtype}; received {fill!r}.")
    return fill.item() if isinstance(fill, np.generic) else fill


def _holds(dtype: str, number: Any) -> bool:
    try:
        with np.errstate(invalid="ignore"):
            return bool(np.asarray(number).astype(dtype) == number)
    except OverflowError:
        return False


def _check_same(first: str, expected: tuple[ColumnPlan, ...], path: str, found: tuple[ColumnPlan, ...]) -> None:
    for one, other in zip(expected, found, strict=True):
        if one.kind != other.kind:
            raise ConfigError(
                f"from_parquet: column {one.name!r} is {one.kind} in {first}, but {other.kind} in {path}. All files "
                "must have the same columns."
            )


def _check_nulls(path: str, footer: _Footer, columns: Sequence[ColumnPlan]) -> None:
    """Checks for nulls as far as the footer counts them; reading finds the rest."""
    leaves = {footer.metadata.schema.column(i).path: i for i in range(footer.metadata.num_columns)}
    for column in columns:
        if column.fill is not None or column.name not in leaves:
            continue
        for group in range(footer.num_row_groups):
            statistics = footer.metadata.row_group(group).column(leaves[column.name]).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                raise _nulls(column.name, statistics.null_count, f"{path}, row group {group}")


def _nulls(name: str, count: int, where: str) -> ConfigError:
    return ConfigError(
        f"from_parquet: column {name!r} has {count} nulls in {where}, which tensors cannot represent. Replace them, "
        f'as in fill={{"{name}": 0}}, or exclude the column with columns=[...].'
    )


def _print(metadata: Any, group: int, names: Sequence[str]) -> int:
    """Of where the columns are in the file, and of their least and greatest values."""
    found = metadata.row_group(group)
    columns = [found.column(number) for number in range(found.num_columns)]
    chosen = [each for each in columns if each.path_in_schema.partition(".")[0] in names]
    said = [(each.path_in_schema, each.data_page_offset, each.total_compressed_size, _range(each)) for each in chosen]
    return zlib.crc32(repr(said).encode())


def _range(column: Any) -> Any:
    statistics = column.statistics
    return None if statistics is None or not statistics.has_min_max else (statistics.min_raw, statistics.max_raw)


def _read_group(columns: Sequence[ColumnPlan], group: int, rows: int, print_: int, path: str) -> Any:
    with _open(path) as file:
        found = file.metadata.row_group(group).num_rows if group < file.num_row_groups else 0
        if found != rows:
            raise ConfigError(
                f"{path} has changed: row group {group} had {rows} rows when the dataset was made and now has "
                f"{found} on {socket.gethostname()}. Make the dataset again."
            )
        if _print(file.metadata, group, [column.name for column in columns]) != print_:
            raise ConfigError(
                f"{path} has changed: row group {group} has other contents on {socket.gethostname()} than when the "
                "dataset was made. Make the dataset again."
            )
        table = file.read_row_group(group, columns=[column.name for column in columns])
    found = {column.name: _as_planned(column, table.column(column.name), path) for column in columns}
    return _arrow().table(found)


def _as_planned(plan_: ColumnPlan, values: Any, path: str) -> Any:
    """The values in a type that all files have alike: text in one of the types of text, times as numbers."""
    arrow = _arrow()
    found = _column_plan(path, arrow.field(plan_.name, values.type), None)
    if found.kind != plan_.kind:
        raise ConfigError(
            f"{path} has changed: column {plan_.name!r} was {plan_.kind} when the dataset was made and is now "
            f"{found.kind} on {socket.gethostname()}. Make the dataset again."
        )
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    leaf = values.type
    while arrow.types.is_fixed_size_list(leaf):
        leaf = leaf.value_type
    if plan_.unit:
        leaf = getattr(arrow, plan_.dtype)()
    elif plan_.dtype == "string" and not plan_.shape:
        leaf = arrow.large_binary()
    for size in reversed(plan_.shape):
        leaf = arrow.list_(leaf, size)
    return values if values.type.equals(leaf) else values.cast(leaf)


def _column(plan_: ColumnPlan, values: Any, where: str) -> Column:
    arrow = _arrow()
    if plan_.fill is not None:
        values = values.fill_null(arrow.scalar(plan_.fill).cast(values.type))
    array = values.combine_chunks()
    rows = len(array)
    while True:
        if array.null_count:
            raise _nulls(plan_.name, array.null_count, f"the rows from {where} on")
        if not arrow.types.is_fixed_size_list(array.type):
            break
        array = array.flatten()
    shape = (rows, *plan_.shape)
    if plan_.dtype == "string":
        return _strings(arrow, array, shape)
    return column_of(array.to_numpy(zero_copy_only=False).astype(plan_.dtype, copy=False).reshape(shape))


def _strings(arrow: ModuleType, array: Any, shape: tuple[int, ...]) -> Column:
    array = array.cast(arrow.large_binary())
    _, ends, data = array.buffers()
    ends_bytes = np.dtype(np.int64).itemsize
    address = 0 if data is None else data.address
    return Column(shape, address, 0 if data is None else data.size, ends.address + array.offset * ends_bytes, array)


def _some(files: Sequence[str]) -> str:
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")
