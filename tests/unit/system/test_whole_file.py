"""Tests of tfdist.system.whole_file; damaged and half-written files are tested with each kind of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.system.whole_file import DamagedFileError, FileKind, NumberedFile

KIND = FileKind("thing 3", "at-%04d.%d-thing", lambda parts: f"{sum(map(sum, parts)):x}", mode=0o600)


def test_what_is_written_is_read_by_its_kind_alone(tmp_path: Path) -> None:
    path = KIND.write(tmp_path / "made", (7, 12), [memoryview(b"ab"), memoryview(b"c")])
    assert path == tmp_path / "made" / "at-0007.12-thing"
    assert path.read_bytes() == b"tfdist thing 3 126 3\nabc"
    assert path.stat().st_mode & 0o777 == 0o600
    assert bytes(KIND.contents(path.read_bytes())) == b"abc"
    newer = FileKind("thing 4", KIND.template, KIND.checksum)
    with pytest.raises(DamagedFileError, match="it does not begin like a thing 4"):
        newer.contents(path.read_bytes())


def test_the_newest_is_the_first_and_other_names_are_left_alone(tmp_path: Path) -> None:
    assert KIND.newest_first(tmp_path / "none") == []
    KIND.remove_unfinished(tmp_path / "none")
    others = {"at-0001.2-thing.txt", "at-0001x2-thing", ".at-0001.2-thing", ".host.x.at-0001.2-thing"}
    for name in ("at-0009.1-thing", "at-12345.0-thing", "at-0009.10-thing", ".host.77.at-0009.11-thing", *others):
        (tmp_path / name).touch()
    assert KIND.newest_first(tmp_path) == [
        NumberedFile(numbers, tmp_path / (KIND.template % numbers)) for numbers in ((12345, 0), (9, 10), (9, 1))
    ]
    KIND.remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("at-0009")} == others | {
        "at-12345.0-thing"
    }
