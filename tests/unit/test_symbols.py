"""The symbol gate of the wheel: passes on what is installed, and finds each kind of library that would not load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

import symbols
from symbols import SymbolError
from tfdist.native import build

MINOR = ".".join(tf.__version__.split(".")[:2])
CORE = ("malloc@GLIBC_2.2.5",), ("tfdist_init", "_ZN6tfdist5World3GetEv")
PLUGIN = ("MPI_Init_thread", "ompi_mpi_comm_world", "_ZN6tfdist5World3GetEv"), ()
ADAPTER = ("_ZN10tensorflow8OpKernelE", "_ZN3xla3FfiE@tensorflow", "memcpy@@GLIBC_2.14", "_ZN6tfdist5World3GetEv"), ()
TENSORFLOW = {"_ZN10tensorflow8OpKernelE", "_ZN3xla3FfiE", "_ZN4absl6StatusE"}
Tables = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
GOOD: Tables = {"core": CORE, "mpi_openmpi": PLUGIN, "tf2.21": ADAPTER}


def test_the_installed_libraries_pass() -> None:
    folder = Path(tf.__file__).parent
    there = set().union(*(symbols.defined(path) for path in folder.glob("libtensorflow_*.so.2")))
    assert len(there) > 100_000
    symbols.check(build.FOLDER, {MINOR: {tf.__version__: there}})
    assert symbols.needed(build.adapter(tf.__version__)) & there


def test_what_plugins_and_adapters_export_is_nothing() -> None:
    for path in build.FOLDER.glob("libtfdist_*.so"):
        names = symbols.defined(path)
        foreign = [name for name in names if not name.startswith("tfdist_") and "6tfdist" not in name]
        assert foreign == [] and bool(names) == (path == build.core())


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tables], None]:
    """Checks libraries with these tables: needed names, and defined ones."""

    def run(tables: Tables) -> None:
        for name in tables:
            (tmp_path / f"libtfdist_{name}.so").touch()

        def names(which: str, library: Path) -> list[tuple[str, str]]:
            needed, defined = tables[library.name.removeprefix("libtfdist_").removesuffix(".so")]
            return (
                [("U", name) for name in needed] if which == "--undefined-only" else [("T", name) for name in defined]
            )

        monkeypatch.setattr(symbols, "_nm", names)
        symbols.check(tmp_path, {"2.21": {"tensorflow 2.21.0": TENSORFLOW}})

    return run


def test_good_libraries_pass(check: Callable[[Tables], None]) -> None:
    check(GOOD)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("core", ((*CORE[0], "_ZN4absl6StatusE"), CORE[1]), "libtfdist_core.so needs 1 names"),
        ("core", ((*CORE[0], "MPI_Init"), CORE[1]), "libtfdist_core.so needs 1 names"),
        ("core", (CORE[0], (*CORE[1], "PyInit_core")), "has the name PyInit_core"),
        ("core", (CORE[0], CORE[1][:1]), "libtfdist_mpi_openmpi.so needs 1 names"),
        ("mpi_openmpi", ((*PLUGIN[0], "_ZN10tensorflow8OpKernelE"), ()), "libtfdist_mpi_openmpi.so needs 1 names"),
        ("tf2.21", ((*ADAPTER[0], "_ZN10tensorflow4GoneE"), ()), "not in tensorflow 2.21.0 and the core"),
        ("tf2.21", ((*ADAPTER[0], "_ZN3xla4GoneE@tensorflow"), ()), "not in tensorflow 2.21.0 and the core"),
        ("tf2.21", ((*ADAPTER[0], "MPI_Init"), ()), "libtfdist_tf2.21.so needs 1 names"),
    ],
)
def test_a_broken_library_is_found(
    check: Callable[[Tables], None], name: str, table: tuple[tuple[str, ...], tuple[str, ...]], message: str
) -> None:
    with pytest.raises(SymbolError) as caught:
        check(GOOD | {name: table})
    assert message in str(caught.value)
