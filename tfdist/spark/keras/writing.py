"""Writes a DataFrame into a store as Parquet files: each task one for training, and one for validation."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tfdist.errors import ConfigError
from tfdist.spark.store import add

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of a row group in memory; also what a task holds.
_GROUP_BYTES = 64 << 20
# Sizes that a message has.
_SHOWN = 3


@dataclass(frozen=True)
class File:
    """What a task has written: a path or an address, with what is in it."""

    path: str
    rows: int
    groups: int
    bytes: int


@dataclass(frozen=True)
class Written:
    """All rows of a DataFrame.

    Attributes:
        train: The files to train on.
        validation: The files to validate with.
        shapes: Of a row, by column; () for single values.
    """

    train: tuple[File, ...]
    validation: tuple[File, ...]
    shapes: tuple[tuple[int, ...], ...]


def name_of(column: int) -> str:
    """What a column is called in the files, where any name of a DataFrame would not do."""
    return f"c{column}"


def write(
    frame: DataFrame, chosen: Sequence[tuple[str, Column]], validation: Column, folders: tuple[str, str], parts: int
) -> Written:
    """Has Spark write columns of a DataFrame.

    Args:
        frame: Of Spark.
        chosen: The columns, each with what messages call it.
        validation: Whether a row is for validation.
        folders: Where rows to train on go, and rows to validate with: made by `store.open_folder`.
        parts: Number of tasks.

    Raises:
        ConfigError: If there are nulls, or arrays whose number of values differs from row to row.
    """
    named = [column.alias(name_of(place)) for place, (_, column) in enumerate(chosen)]
    # Rows first, then their part, so that tasks which Spark runs again give a row the same one.
    spread = frame.select(*named, validation.alias("validation")).repartition(parts)
    width = len(chosen)
    reports = spread.mapInArrow(lambda batches: _write_part(batches, width, folders), "report string").collect()
    found = [json.loads(row["report"]) for row in reports]
    shapes = tuple(_shape(what, [each["columns"][place] for each in found]) for place, (what, _) in enumerate(chosen))
    files = [tuple(File(**each[kind]) for each in found if each[kind]) for kind in ("train", "validation")]
    return Written(files[0], files[1], shapes)


def _shape(what: str, parts: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """That of a row, from what the tasks have seen. Raises ConfigError."""
    nulls = sum(part["nulls"] for part in parts)
    if nulls:
        raise ConfigError(
            f"{what} has {nulls} nulls, which tensors cannot represent. Replace them with df.fillna(...), or leave the "
            "rows out with df.dropna(...)."
        )
    sizes = sorted({tuple(size) for part in parts for size in part["sizes"]})
    if len(sizes) > 1 or any(0 in size for size in sizes):
        raise ConfigError(
            f"{what} has arrays of {' and of '.join(map(str, sizes[:_SHOWN]))} values, and a tensor needs the same "
            "number, at least 1, in every row. Pad or cut them."
        )
    return sizes[0] if sizes else ()


def _write_part(batches: Iterator[Any], width: int, folders: tuple[str, str]) -> Iterator[Any]:
    """Runs in a task, and yields a report."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    seen = [_Seen() for _ in range(width)]
    # A task that is tried again, or runs twice, writes other files; only those of the reports are used. In their order
    # they are the same in every run.
    name = f"part-{context.partitionId():05}-{secrets.token_hex(4)}.parquet"
    with tempfile.TemporaryDirectory(prefix="tfdist-") as scratch:
        sinks = [_Sink(Path(scratch) / str(number), f"{folder}/{name}") for number, folder in enumerate(folders)]
        for batch in batches:
            table = pa.Table.from_batches([batch])
            chosen = table.column(width)
            columns = [seen[place].look(table.column(place).combine_chunks()) for place in range(width)]
            if any(each.is_bad for each in seen):
                continue
            whole = pa.table(dict(zip(map(name_of, range(width)), columns, strict=True)))
            sinks[0].add(whole.filter(pc.invert(chosen)))
            sinks[1].add(whole.filter(chosen))
        is_good = not any(each.is_bad for each in seen)
        files = [sink.close() if is_good else None for sink in sinks]
    report = {
        "columns": [{"nulls": each.nulls, "sizes": sorted(each.sizes)} for each in seen],
        "train": files[0],
        "validation": files[1],
    }
    yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})


@dataclass
class _Seen:
    """What a column has had: nulls, and the sizes of its arrays."""

    nulls: int = 0
    sizes: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def is_bad(self) -> bool:
        return bool(self.nulls) or len(self.sizes) > 1 or any(0 in size for size in self.sizes)

    def look(self, array: Any) -> Any:
        """The array, with lists of a fixed size if it has lists; if that cannot be, it is bad, and unchanged."""
        sizes: list[int] = []
        inner = array
        while pa.types.is_list(inner.type):
            self.nulls += inner.null_count
            lengths = set(pc.unique(pc.list_value_length(inner)).to_pylist()) - {None}
            if len(lengths) > 1 or 0 in lengths:
                self.sizes |= {(length,) for length in lengths}
            if len(lengths) != 1 or self.is_bad:
                return array
            sizes += lengths
            inner = inner.flatten()
        self.nulls += inner.null_count
        if len(array):
            self.sizes.add(tuple(sizes))
        if self.is_bad:
            return array
        for size in reversed(sizes):
            inner = pa.FixedSizeListArray.from_arrays(inner, size)
        return inner


class _Sink:
    """A Parquet file that grows by row groups, on the disk until it is whole."""

    def __init__(self, local: Path, path: str) -> None:
        self._local, self._path = local, path
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = self._groups = self._bytes = 0

    def add(self, table: Any) -> None:
        if table.num_rows:
            self._waiting.append(table)
            if sum(each.nbytes for each in self._waiting) >= _GROUP_BYTES:
                self._flush()

    def close(self) -> dict[str, Any] | None:
        """Puts the file into the store; what is in it, or None if no row came."""
        if self._waiting:
            self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        add(self._local, self._path)
        return {"path": self._path, "rows": self._rows, "groups": self._groups, "bytes": self._bytes}

    def _flush(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._waiting = []
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._local, table.schema)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows, self._groups, self._bytes = (
            self._rows + table.num_rows,
            self._groups + 1,
            self._bytes + table.nbytes,
        )
