"""Tests of tfdist.launch.start.job_folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tfdist.launch.start import job_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(job_folder, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_only_those_of_the_job_are_removed(tmp_path: Path) -> None:
    for job in ("a1", "a12"):
        job_folder.session(job).mkdir()
        for rank in (0, 11):
            job_folder.segment_variables(job_folder.segments(job, rank), {})
            (job_folder.segments(job, rank) / "sm_segment").touch()
    job_folder.remove("a1")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*a1*"))
    assert left == ["memory/tfdistrun-a12-0", "memory/tfdistrun-a12-11", "tfdistrun.a12"]


def test_what_the_user_has_set_stays() -> None:
    folder = job_folder.segments("a1", 0)
    alone = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert job_folder.segment_variables(folder, alone) == {}
    assert not folder.exists()
    assert job_folder.segment_variables(folder, {"OMPI_MCA_btl_vader_backing_directory": "/mine"}) == {}
    assert not folder.exists()
    assert set(job_folder.segment_variables(folder, {"OMPI_MCA_btl": "self"}).values()) == {str(folder)}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_host_without_such_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job_folder, "MEMORY", tmp_path / "none")
    assert job_folder.segment_variables(job_folder.segments("a1", 0), {}) == {}


@pytest.mark.parametrize("name", ["prte_tmpdir_base", "prte_local_tmpdir_base", "prte_remote_tmpdir_base"])
def test_place_that_the_user_has_named_stays(name: str) -> None:
    folder = job_folder.session("a1")
    assert job_folder.session_variables(folder, ["mpirun"], {f"PRTE_MCA_{name}": "/mine"}) == {}
    assert job_folder.session_variables(folder, ["mpirun", "--prtemca", name, "/mine"], {"A": "b"}) == {}
    assert job_folder.session_variables(folder, ["mpirun"], {}) == {"PRTE_MCA_prte_local_tmpdir_base": str(folder)}


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_folder_that_a_stranger_was_first_to_make(tmp_path: Path, kind: str) -> None:
    """Who owns it could replace the memory of the ranks."""
    folder = job_folder.segments("a1", 0)
    if kind == "folder":
        folder.mkdir(mode=0o777)
    else:
        (tmp_path / "theirs").mkdir()
        folder.symlink_to(tmp_path / "theirs")
    assert job_folder.segment_variables(folder, {}) == {}
