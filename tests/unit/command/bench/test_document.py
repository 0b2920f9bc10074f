"""benchmarks/document.py: sections of a document between their markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"


@pytest.fixture
def document(script: Any) -> Any:
    return script("document")


def test_a_rerun_replaces_the_section_and_nothing_else(document: Any, tmp_path: Path) -> None:
    text = f"# Title\n\n{BEGIN}\nold\n{END}\n\n<!-- other: begin -->\nkept\n<!-- other: end -->\n"
    path = tmp_path / "document.md"
    path.write_text(text)
    document.write(path, "compare", "new")
    assert path.read_text() == text.replace("old", "new")
    document.write(path, "compare", "newer")
    assert path.read_text() == text.replace("old", "newer")


@pytest.mark.parametrize("text", ["", BEGIN, f"{END} {BEGIN}", f"{BEGIN} {END} {END}"])
def test_a_document_without_its_markers_is_refused(document: Any, text: str) -> None:
    with pytest.raises(ValueError, match="must have one line"):
        document.replaced(text, "compare", "new")


@pytest.mark.parametrize("section", ["compare", "two hosts", "overhead"])
def test_the_document_of_the_project_has_the_markers(document: Any, section: str) -> None:
    text = document.PERFORMANCE.read_text()
    assert document.replaced(text, section, "TABLE").count("TABLE") == 1
