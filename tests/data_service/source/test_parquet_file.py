"""Plans and reads of Parquet files, without TensorFlow: what is asked for is what comes, in memory as it is told."""

import ctypes
import itertools
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfdist.data_service.source import parquet_file
from tfdist.data_service.source.parquet_file import ColumnPlan
from tfdist.errors import ConfigError


@pytest.fixture
def files(tmp_path):
    """Row groups of 3, 3 and 1 rows, then one of 2."""
    paths = []
    for name, numbers in (("a", range(7)), ("b", range(7, 9))):
        table = pa.table({"n": pa.array(numbers, pa.int16()), "s": [f"s{i}" for i in numbers]})
        paths.append(str(tmp_path / name))
        pq.write_table(table, paths[-1], row_group_size=3)
    return paths


def request(plan, places, seed=b""):
    parts = [parquet_file.specification(plan.columns).encode(), seed]
    for place in places:
        numbers = (place, plan.group_of[place], plan.rows_of[place], plan.print_of[place])
        parts += [*(str(number).encode() for number in numbers), plan.files[plan.file_of[place]].encode()]
    return parts


def numbers_of(column):
    assert column.ends_address is None
    array = (ctypes.c_int16 * (column.byte_count // 2)).from_address(column.address)
    assert column.shape == (len(array),)
    return list(array)


def strings_of(column):
    ends = (ctypes.c_int64 * (column.shape[0] + 1)).from_address(column.ends_address)
    data = ctypes.string_at(column.address, column.byte_count)
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def test_plan_lists_the_row_groups_of_all_files(files):
    plan = parquet_file.plan(files, None, {"s": "?"})
    assert plan.columns == (ColumnPlan("n", "int16"), ColumnPlan("s", "string", (), "?"))
    assert plan.files == tuple(files)
    assert plan.file_of.tolist() == [0, 0, 0, 1]
    assert plan.group_of.tolist() == [0, 1, 2, 0]
    assert plan.rows_of.tolist() == [3, 3, 1, 2]


def test_row_groups_of_several_files_are_read_together(files):
    plan = parquet_file.plan(files, ["s", "n"], {})
    texts, numbers = parquet_file.read(request(plan, [3, 1]))
    assert numbers_of(numbers) == [7, 8, 3, 4, 5]
    assert strings_of(texts) == [b"s7", b"s8", b"s3", b"s4", b"s5"]


def test_a_seed_mixes_the_rows_and_belongs_to_the_window(files):
    plan = parquet_file.plan(files, ["n"], {})
    mixed = [numbers_of(*parquet_file.read(request(plan, places, b"1 2"))) for places in ([0, 1, 2], [0, 1, 2])]
    assert mixed[0] == mixed[1]
    assert mixed[0] != sorted(mixed[0])
    assert sorted(mixed[0]) == list(range(7))
    others = {tuple(numbers_of(*parquet_file.read(request(plan, [0, 1, 2], b"any")))) for _ in range(10)}
    assert len(others) > 1


@pytest.mark.parametrize(
    ("fill", "dtype", "kept"),
    [(np.int64(3), pa.int8(), 3), (True, pa.bool_(), True), (2, pa.float32(), 2), ("", pa.string(), "")],
)
def test_a_fill_is_kept_as_json_can_carry_it(tmp_path, fill, dtype, kept):
    pq.write_table(pa.table({"a": pa.array([None], dtype)}), tmp_path / "a")
    (column,) = parquet_file.plan([str(tmp_path / "a")], None, {"a": fill}).columns
    assert column.fill == kept
    assert type(column.fill) is type(kept)
    parquet_file.read(request(parquet_file.plan([str(tmp_path / "a")], None, {"a": fill}), [0]))


@pytest.mark.parametrize(
    ("fill", "dtype"),
    [(300, pa.int8()), (2**70, pa.int64()), (float("nan"), pa.int8()), (b"", pa.string()), ([1], pa.int8())],
)
def test_a_fill_of_another_type_is_refused(tmp_path, fill, dtype):
    pq.write_table(pa.table({"a": pa.array([None], dtype)}), tmp_path / "a")
    with pytest.raises(ConfigError, match="fill for column 'a' must be a value of"):
        parquet_file.plan([str(tmp_path / "a")], None, {"a": fill})


def test_a_plan_leaves_no_file_open(files):
    def opened():
        return {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}

    plan = parquet_file.plan(files, None, {})
    assert len(plan.files) == 2
    assert not opened() & set(plan.files)
