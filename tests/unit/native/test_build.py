"""Which library serves which TensorFlow and MPI, and what is said where none does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.errors import BuildError
from tfdist.native import build

ROOT = Path(__file__).parents[3]
MINORS = ("2.9", "2.20", "2.21")


@pytest.fixture
def three_minors(make_library: Callable[..., Path]) -> Callable[..., Path]:
    for minor in MINORS:
        make_library(f"tf{minor}", tensorflow=f"{minor}.0 {minor}.1", xla="")
    return make_library


def test_the_installed_libraries_are_of_one_build() -> None:
    core, adapter = build.record(build.core()), build.record(build.adapter(tf.__version__))
    assert core["build"] == adapter["build"]
    assert core["compiler"]
    assert tf.__version__ in adapter["tensorflow"].split()


@pytest.mark.parametrize("version", ["2.20.0", "2.20.7", "2.20.0-rc1", "2.20"])
def test_an_adapter_serves_all_patches_of_its_minor(three_minors: Callable[..., Path], version: str) -> None:
    assert build.adapter(version).name == "libtfdist_tf2.20.so"


@pytest.mark.parametrize("version", ["2.2.0", "2.19.1", "3.0.0"])
def test_other_tensorflow_is_refused_with_what_there_is(three_minors: Callable[..., Path], version: str) -> None:
    with pytest.raises(BuildError) as caught:
        build.adapter(version)
    assert isinstance(caught.value, ImportError)
    for fact in (version, "2.9, 2.20, 2.21", "tensorflow-cpu==2.21.*"):
        assert fact in str(caught.value)
    assert (build.reinstall() in str(caught.value)) == (version != "2.2.0"), "it cannot be built for one so old"


def test_without_an_adapter_none_is_offered(make_library: Callable[..., Path]) -> None:
    with pytest.raises(BuildError, match="has libraries for none") as caught:
        build.adapter("2.21.0")
    assert "tensorflow-cpu==" not in str(caught.value) and build.reinstall() in str(caught.value)


def test_a_plugin_serves_an_abi(make_library: Callable[..., Path]) -> None:
    path = make_library("mpi_mpich", mpi="MPICH 4.0.2")
    assert build.plugin("mpich", "MPICH 5.0.2") == path
    with pytest.raises(BuildError) as caught:
        build.plugin("openmpi", "Open MPI v5.0.11")
    for fact in ("Open MPI v5.0.11", "MPICH 4.0.2", "TFDIST_MPI_HOME", build.reinstall()):
        assert fact in str(caught.value)


@pytest.mark.parametrize(
    "find", [lambda: build.adapter("2.21.0"), lambda: build.plugin("openmpi", "Open MPI v5")], ids=["adapter", "plugin"]
)
def test_a_library_of_another_build_is_refused(make_library: Callable[..., Path], find: Callable[[], Path]) -> None:
    make_library("tf2.21", tensorflow="2.21.0", build="two")
    make_library("mpi_openmpi", mpi="Open MPI 5.0.11", build="two")
    with pytest.raises(BuildError, match=r"is of build two, but libtfdist_core\.so of build one"):
        find()


def test_a_library_without_record_is_refused(make_library: Callable[..., Path]) -> None:
    make_library("core").write_bytes(b"\x7fELF")
    with pytest.raises(BuildError, match="no build record"):
        build.record(build.core())


def test_missing_core_says_how_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    with pytest.raises(BuildError, match=r"pip install '\.\[cpu\]'"):
        build.core()


def test_summary(make_library: Callable[..., Path]) -> None:
    make_library("tf2.21", tensorflow="2.21.0")
    make_library("tf2.9", tensorflow="2.9.3")
    make_library("mpi_openmpi", mpi="Open MPI 5.0.11")
    assert build.summary() == "TensorFlow 2.9 and 2.21, Open MPI 5.0.11"


@pytest.fixture
def installed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Makes tfdist look as if pip had installed it with this record of where it came from."""

    def install(origin: object) -> None:
        folder = tmp_path / "tfdist-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tfdist\nVersion: 1\n")
        if origin:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(folder))

    return install


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        (lambda source: {"url": source.as_uri(), "dir_info": {}}, True),
        (lambda source: {"url": source.as_uri(), "archive_info": {}}, False),
        (lambda source: {"url": (source / "gone").as_uri(), "dir_info": {}}, False),
        (lambda source: None, False),
    ],
    ids=["source", "wheel", "gone", "index"],
)
def test_the_remedy_names_the_source_it_was_installed_from(
    tmp_path: Path, installed_from: Callable[[object], None], origin: Callable[[Path], object], named: bool
) -> None:
    source = tmp_path / "with a space"
    source.mkdir()
    (source / "CMakeLists.txt").touch()
    installed_from(origin(source))
    wanted = shlex.quote(str(source)) if named else "<its source folder>"
    assert build.reinstall() == f"pip install --force-reinstall --no-deps {wanted}"


@pytest.mark.slice("docs")
def test_the_remedy_installs(installed_from: Callable[[object], None], tmp_path: Path) -> None:
    """All of the command but the compiling: it takes the libraries that are installed, and another folder."""
    source, target = tmp_path / "source", tmp_path / "target"
    left = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left)
    installed_from({"url": source.as_uri(), "dir_info": {}})
    program, *words = shlex.split(build.reinstall())
    assert program == "pip"
    command = [sys.executable, "-m", "pip", *words, "--target", str(target)]
    environment = os.environ | {"TFDIST_LIBRARIES": str(build.FOLDER)}
    subprocess.run(command, env=environment, capture_output=True, timeout=300, check=True)
    assert (target / "tfdist" / build.core().name).read_bytes() == build.core().read_bytes()
    (recorded,) = target.glob("tfdist-*.dist-info/direct_url.json")
    assert json.loads(recorded.read_text())["url"] == source.as_uri()
