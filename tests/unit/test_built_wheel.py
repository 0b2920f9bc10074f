"""A wheel is taken instead of compiling only if it is of the same sources."""

from __future__ import annotations

import platform
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import build_environment
import built_wheel

NAME = f"tfdist-1-py3-none-manylinux_2_27_{platform.machine()}.whl"
CPP = ("CMakeLists.txt", "tfdist/csrc/core/engine.cc", "tfdist/csrc/README.md")
PYTHON = ("tfdist/config.py", "callbacks/fit.py", "data_service/server/command.py")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in (*CPP, *PYTHON):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "dist").mkdir()
    (tmp_path / "pyproject.toml").write_text("requirements")
    with tarfile.open(tmp_path / "dist" / "tfdist-1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "pyproject.toml", "tfdist-1/pyproject.toml")
    with zipfile.ZipFile(tmp_path / "dist" / NAME, "w") as wheel:
        for name in PYTHON:
            inside = name if name.startswith("tfdist/") else f"tfdist/{name}"
            wheel.writestr(inside, (tmp_path / name).read_bytes())
        record = f'{{"build": "{build_environment.build_id(tmp_path)}", "compiler": "GNU"}}'
        wheel.writestr("tfdist/libtfdist_core.so", b"\x7fELF" + record.encode())
    return tmp_path


def test_one_of_these_sources_is_named(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert built_wheel.main([], sources) == 0
    assert capsys.readouterr() == (f"{sources}/dist/{NAME}\n", "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / PYTHON[1]).write_text("new"), "tfdist/callbacks/fit.py differs"),
        (lambda folder: (folder / PYTHON[0]).unlink(), "tfdist/config.py differs"),
        (lambda folder: (folder / "tfdist" / "new.py").touch(), "tfdist/new.py differs"),
        (lambda folder: (folder / "pyproject.toml").write_text("others"), "pyproject.toml differs"),
        (lambda folder: (folder / "dist" / "tfdist-1.tar.gz").unlink(), "pyproject.toml differs"),
        (lambda folder: (folder / CPP[1]).write_text("new"), "other C++ sources"),
        (lambda folder: (folder / CPP[0]).write_text("new"), "other C++ sources"),
    ],
    ids=["changed", "removed", "added", "requirements", "alone", "C++", "CMake"],
)
def test_one_of_other_sources_is_not(
    sources: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], why: str
) -> None:
    change(sources)
    assert built_wheel.main([], sources) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and why in printed.err and "make wheels" in printed.err


def test_libraries_are_taken_whatever_the_python(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sources / PYTHON[1]).write_text("new")
    target = sources / "taken"
    assert built_wheel.main(["--libraries", str(target)], sources) == 0
    assert [path.name for path in target.iterdir()] == ["libtfdist_core.so"]
    (sources / CPP[1]).write_text("new")
    assert built_wheel.main(["--libraries", str(sources / "not taken")], sources) == 1
    assert not (sources / "not taken").exists()
    assert "other C++ sources" in capsys.readouterr().err


def test_text_for_readers_makes_no_difference(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sources / CPP[2]).write_text("new")
    assert built_wheel.main([], sources) == 0
    assert capsys.readouterr().out != ""


def test_one_for_another_machine_is_not_looked_at(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sources / "dist" / NAME).rename(sources / "dist" / "tfdist-1-py3-none-manylinux_2_27_pdp11.whl")
    assert built_wheel.main([], sources) == 0
    assert capsys.readouterr() == ("", "")


def test_without_a_wheel_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert built_wheel.main([], tmp_path) == 0
    assert capsys.readouterr() == ("", "")
