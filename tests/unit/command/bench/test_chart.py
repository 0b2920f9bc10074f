"""benchmarks/chart.py: the chart of the README shows what compare.py has written into docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

LABEL = re.compile(r"<text[^>]*>(\d+ (?:%|ms))</text>")


@pytest.fixture
def chart(script: Any) -> Any:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra bench)")
    return script("chart")


def test_the_chart_is_of_the_document_as_it_is(chart: Any, tmp_path: Path) -> None:
    """Another version of matplotlib draws other paths, so the texts are compared: values, date, machine."""
    chart.draw(chart.recorded(chart.document.PERFORMANCE.read_text()), tmp_path / "chart.svg")
    texts = [re.findall(r"<text[^>]*>([^<]*)", path.read_text()) for path in (tmp_path / "chart.svg", chart.CHART)]
    assert sorted(texts[0]) == sorted(texts[1]), "run python benchmarks/chart.py"


def test_the_values_are_cells_of_the_tables(chart: Any, tmp_path: Path) -> None:
    text = chart.document.PERFORMANCE.read_text()
    for old, new in (("| 965.6 | 932.8 | 0.96 |", "| 965.6 | 932.8 | 0.42 |"), ("| 98228.3 |", "| 77000.0 |")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    chart.draw(chart.recorded(text), tmp_path / "chart.svg")
    drawn = LABEL.findall((tmp_path / "chart.svg").read_text())
    values = "42 %, 94 %, 97 %, 67 %, 70 %, 67 %, 27 ms, 77 ms, 24 ms, 141 ms".split(", ")
    assert sorted(drawn) == sorted(values)


def test_without_horovod_there_is_no_chart(chart: Any) -> None:
    text = chart.document.replaced(chart.document.PERFORMANCE.read_text(), "compare", "- Horovod was not measured\n")
    with pytest.raises(ValueError, match="--horovod-python"):
        chart.recorded(text)
