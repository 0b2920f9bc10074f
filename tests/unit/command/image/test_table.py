"""The table as text and in the documentation, which a test holds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.command.image import table, version
from tfdist.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "containers.md"


def test_the_documentation_has_todays_table() -> None:
    page = PAGE.read_text()
    assert table.replaced(page) == page, "rewrite it: tfdist image versions --markdown docs/containers.md"
    assert table.markdown() in page


def test_an_older_table_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    new = PAGE.read_text()
    old = new.replace("| 2.19.1 | 3.10", "| 2.19.0 | 3.9")
    assert old != new
    page.write_text(old)
    table.write(page)
    assert page.read_text() == new


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_page_without_one_place_for_it(tmp_path: Path, kept: int) -> None:
    page = tmp_path / "page.md"
    first, last = (line for line in PAGE.read_text().splitlines() if line.startswith("<!--"))
    page.write_text("\n".join(["a", *([first, last] * 2)[:kept], "z"]))
    before = page.read_text()
    with pytest.raises(ConfigError, match=r"page\.md: no place for the table; add these two lines"):
        table.write(page)
    assert page.read_text() == before


def test_a_page_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.md: .*No such file"):
        table.write(tmp_path / "none.md")


def test_every_release_and_python_is_a_line_of_the_text() -> None:
    lines = table.text().splitlines()
    for release in version.RELEASES:
        (line,) = [line for line in lines if line.startswith(release.version)]
        assert all(name in line for name in (*release.pythons, *release.cuda, release.numpy))
    for python in version.PYTHONS:
        (line,) = [line for line in lines if line.startswith(f"{python.version} ")]
        assert python.begin in line and all(keras in line for keras in python.keras)
    assert sum("(default)" in line for line in lines) == 2


@pytest.mark.parametrize(("names", "told"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")])
def test_lists_are_read_aloud(names: list[str], told: str) -> None:
    assert table.listed(names) == told
