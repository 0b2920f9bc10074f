"""The rows that options ask for, and how a size is shared out to tensors."""

from __future__ import annotations

import pytest

from tfdist.command.bench.allreduce.case import ELEMENT_BYTES, Case, check_operation, grouped, uncompressed
from tfdist.errors import ConfigError


def test_groups_and_rows_of_the_table() -> None:
    groups = grouped([4096, 8192], [1, 2], ["float32", "float16"], ["none", "fp16"])
    assert [(group[0].size_bytes, group[0].tensors) for group in groups] == [(4096, 1), (4096, 2), (8192, 1), (8192, 2)]
    for group in groups:
        assert len({(case.size_bytes, case.tensors) for case in group}) == 1
        kinds = [(case.dtype, case.compression) for case in group]
        assert kinds == [("float32", "none"), ("float32", "fp16"), ("float16", "none")]


@pytest.mark.parametrize("tensors", [1, 7, 160])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_tensors_hold_all_bytes_in_nearly_equal_parts(tensors: int, dtype: str) -> None:
    counts = Case(1 << 20, tensors, dtype, "none").counts
    assert len(counts) == tensors
    assert sum(counts) * ELEMENT_BYTES[dtype] == 1 << 20
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(
    ("size_bytes", "tensors", "dtype", "words"),
    [(10, 1, "float32", ["10B", "float32"]), (16, 5, "float32", ["16B", "4 elements", "5 tensors", "--tensors"])],
)
def test_sizes_that_cannot_be_shared_out(size_bytes: int, tensors: int, dtype: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        grouped([size_bytes], [tensors], [dtype], ["none"])
    assert all(word in str(caught.value) for word in words)


def test_compression_of_what_is_never_compressed() -> None:
    with pytest.raises(ConfigError, match=r"int32.*add none"):
        grouped([4096], [1], ["int32"], ["fp16"])
    assert uncompressed(["int32", "float32", "float16"], ["none", "fp16"]) == ["int32", "float16"]
    assert uncompressed(["int32", "float16"], ["none"]) == []


def test_integers_are_summed_only() -> None:
    check_operation("sum", ["int32", "float32"])
    check_operation("average", ["float32"])
    with pytest.raises(ConfigError, match=r"--op sum for uint8"):
        check_operation("average", ["float32", "uint8"])
