"""Where a rank writes its timeline, and what is refused. That it is written is tested with ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist import errors
from tfdist.observe import timeline


@pytest.mark.parametrize(
    ("given", "rank", "expected"),
    [
        ("run.json", 0, "run.0.json"),
        ("a/run.trace.json", 12, "a/run.trace.12.json"),
        ("run", 1, "run.1.json"),
        ("a.b/run", 1, "a.b/run.1.json"),
    ],
)
def test_the_rank_stands_before_the_suffix(given: str, rank: int, expected: str) -> None:
    assert timeline.file_of(Path(given), rank) == Path(expected)


def test_a_file_of_an_earlier_start_is_kept_where_asked(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        file = timeline.file_of(tmp_path / "run.json", 4, keep=True)
        file.touch()
        names.append(file.name)
    assert names == ["run.4.json", "run.4.2.json", "run.4.3.json"]
    assert timeline.file_of(tmp_path / "run.json", 4).name == "run.4.json"


@pytest.mark.parametrize("path", ["", "folder/"])
def test_a_path_that_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"the name of a file, such as 'run.json'; received '{path}'"):
        timeline.start_timeline(path)
