"""docs/architecture.md is true: each place that it names is there, and the drawing has the rooms that there are."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PLACES = sorted(set(re.findall(r"`(tfdist\.[\w.]+)`", TEXT)))
SOURCES = sorted(set(re.findall(r"`(csrc/[\w/]+\.\w+)`", TEXT)))
# `Class::Function` in `csrc/file`
IN_SOURCES = re.findall(r"`(\w+(?:::\w+)?)` in `(csrc/[\w/]+\.\w+)`", TEXT)


def table(name: str) -> ModuleType:
    """The table of rooms, from the test that holds it."""
    path = ROOT / "tests" / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("place", PLACES)
def test_place_in_python(place: str) -> None:
    words = place.split(".")
    for count in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for name in words[count:]:
            found = getattr(found, name)
        return
    pytest.fail(f"{place} is not there")


@pytest.mark.parametrize("source", SOURCES)
def test_place_in_cpp(source: str) -> None:
    assert (ROOT / "tfdist" / source).is_file()


@pytest.mark.parametrize(("name", "source"), IN_SOURCES)
def test_name_in_cpp(name: str, source: str) -> None:
    text = (ROOT / "tfdist" / source).read_text()
    assert all(re.search(rf"\b{word}\b", text) for word in name.split("::"))


def test_page_names_many_places() -> None:
    assert len(PLACES) > 40
    assert len(SOURCES) > 15
    assert len(IN_SOURCES) > 5


def test_drawing_has_the_rooms() -> None:
    drawn = set(re.findall(r">([\w./]+)</text>", (ROOT / "docs" / "architecture.svg").read_text()))
    rooms, cpp = table("test_architecture.py"), table("test_architecture_cpp.py")
    wanted = {room.partition(".")[0] for room in rooms.ROOMS} - {"tfdist", "__main__"}
    wanted |= {room for room in rooms.ROOMS if re.fullmatch(r"(launch|data_service)\.\w+", room)}
    wanted |= {room if room.startswith("core/") else room.partition("/")[0] for room in cpp.CPP_ROOMS}
    assert wanted <= drawn
    assert drawn <= {*rooms.ROOMS, *wanted}
