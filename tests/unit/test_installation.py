"""The tests judge what is installed: the package comes from site-packages, and it is built from this checkout."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("platlib")).resolve()
SOURCES = {"tfdist": "tfdist", "callbacks": "tfdist/callbacks", "data_service": "tfdist/data_service"}


def test_package_is_the_installed_one() -> None:
    spec = importlib.util.find_spec("tfdist")
    assert spec is not None, "tfdist is not installed here; run: make setup"
    assert spec.origin is not None
    assert Path(spec.origin).resolve().is_relative_to(SITE)


def test_source_tree_is_not_on_the_path() -> None:
    assert ROOT not in [Path(entry or ".").resolve() for entry in sys.path]


@pytest.mark.parametrize("start", [["-c"], ["-m", "runpy"]])
def test_child_sees_the_installed_package_too(start: list[str], tmp_path: Path) -> None:
    """`python -c` and `python -m` put the working folder on the path, so it must not be the checkout."""
    script = tmp_path / "origin.py"
    script.write_text("import tfdist; print(tfdist.__file__)")
    argument = script.read_text() if start == ["-c"] else "origin"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    command = [sys.executable, *start, argument]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve().is_relative_to(SITE)


@pytest.mark.parametrize("folder", SOURCES)
def test_installed_files_are_those_of_the_checkout(folder: str) -> None:
    """No file was forgotten, none is left from an older build, and every one is as it is in the checkout."""
    installed = SITE / SOURCES[folder]
    nested = {SITE / other for other in SOURCES.values() if other.startswith(f"{SOURCES[folder]}/")}
    ours = {path.relative_to(ROOT / folder): path.read_text() for path in (ROOT / folder).rglob("*.py")}
    found = [path for path in installed.rglob("*.py") if not nested & set(path.parents)]
    theirs = {path.relative_to(installed): path.read_text() for path in found}
    assert sorted(ours) == sorted(theirs), "the installed package is another build; run: make setup"
    changed = sorted(str(path) for path, text in ours.items() if theirs[path] != text)
    assert changed == [], "these were edited after the installation; run: make setup"
