"""The slices of `make test-all`: which commits call for which, and what is shown of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import slice as slices

FAILED = """\
..F
=========================== short test summary info ============================
FAILED tests/a.py::b - assert 1 == 2
====================== 1 failed, 2 passed, 3 deselected in 1.20s ======================
make: *** [Makefile:99: test] Error 1
"""
PASSED = "...\n======== 3 passed in 65.00s (0:01:05) ========\n"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("CHANGELOG.md", []),
        ("docs/elastic.md", ["docs"]),
        ("tfdist/csrc/core/engine/engine.cc", ["ranks", "elastic", "gpu-kernels", "engine", "torch"]),
        ("tfdist/training/optimizer.py", ["ranks", "elastic", "tf-matrix"]),
        ("tests/cpp/core/engine/test_world.cc", ["engine"]),
        ("tests/cpp/rank_team.cc", ["gpu-kernels", "engine"]),
        ("tfdist/launch/host/host.py", ["elastic", "hosts", "launch", "slurm", "images", "no-mpi"]),
        ("docker/Dockerfile", ["images", "cuda-image"]),
    ],
)
def test_what_a_path_calls_for(path: str, names: list[str]) -> None:
    assert slices.touched([path]) == names


def test_every_file_has_a_slice_and_every_slice_a_target() -> None:
    targets = [f"test-{name}" for name in slices.NAMES]
    known = subprocess.run(["make", "-n", *targets], cwd=slices.ROOT, capture_output=True, text=True)
    assert known.returncode == 0, known.stderr
    listed = subprocess.run(["git", "ls-files"], cwd=slices.ROOT, capture_output=True, text=True, check=True)
    files = [file for file in listed.stdout.split() if not file.endswith(("/README.md", "/py.typed"))]
    rooms = ("tfdist/", "callbacks/", "data_service/", "docker/", "compose/", "examples/", "docs/")
    assert [file for file in files if file.startswith(rooms) and not slices.touched([file])] == []
    for each in slices.SLICES:
        for way in each.inputs.split("|") if "(" not in each.inputs else [each.inputs]:
            assert any(re.match(way, file) for file in files), f"{each.name}: {way} is no file"


def test_every_mark_is_of_a_slice() -> None:
    """A test whose mark no slice has would never run."""
    files = [*slices.ROOT.glob("tests/**/*.py")]
    marks = {name for file in files for name in re.findall(r'mark\.slice\("([\w-]+)"\)', file.read_text())}
    assert {"slurm", "images", "docs"} < marks <= set(slices.NAMES)


def test_each_slice_comes_first_or_is_added_in_its_turn() -> None:
    chosen = ["slurm", "images"]
    orders = [slices.in_order(chosen, count) for count in range(24)]
    assert {order[0] for order in orders} == set(chosen)
    assert all(sorted(order[:2]) == sorted(chosen) and len(order) == 3 for order in orders)
    assert {order[2] for order in orders} == set(slices.NAMES) - set(chosen)
    assert sorted(slices.in_order(list(slices.NAMES), 3)) == sorted(slices.NAMES)
    assert slices.in_order([], 0) == [slices.NAMES[0]]


def test_what_would_end_too_late_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(slices, "_for_the_last_commits", lambda: ["images", "slurm"])
    monkeypatch.setattr(slices, "BUDGET_MINUTES", 5)
    ran: list[str] = []
    monkeypatch.setattr(slices, "run", lambda target: (ran.append(target), (True, PASSED))[1])
    assert slices.main(["touched"]) == 0
    assert ran == ["test", "test-slurm"]
    assert "make test-images is left out" in capsys.readouterr().out


def test_slices_are_expected_at_the_pace_of_make_test(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(slices, "_for_the_last_commits", lambda: ["images", "slurm"])
    minutes = iter((slices.TEST_MINUTES * 3, 40, 40))
    monkeypatch.setattr(slices, "_minutes_since", lambda begin: next(minutes))
    ran: list[str] = []
    monkeypatch.setattr(slices, "run", lambda target: (ran.append(target), (True, PASSED))[1])
    assert slices.main(["touched"]) == 0
    assert ran == ["test", "test-slurm"]
    assert "make test-images is left out: with its 45 minutes" in capsys.readouterr().out


def test_report_is_the_summary_of_failures_or_the_closing_line() -> None:
    assert slices.report(FAILED).splitlines()[1:] == FAILED.splitlines()[2:4]
    assert slices.report(PASSED) == PASSED.splitlines()[1]
    assert slices.report("a\nmake: *** No rule\nb\n") == "a\nb"


def test_failures_stop_nothing_and_are_shown_last(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    (tmp_path / "failed").write_text(FAILED)
    (tmp_path / "passed").write_text(PASSED)
    rules = "test:\n\t@cat passed\ntest-slurm:\n\t@cat failed; false\ntest-images:\n\t@cat passed\n"
    (tmp_path / "Makefile").write_text(rules)
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    monkeypatch.setattr(slices, "LOGS", tmp_path / "logs")
    assert slices.main(["slurm", "images"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 failed" in lines[-1]
    assert any("make test-images: passed after 0.0 minutes" in line for line in lines)
    assert (tmp_path / "logs" / "test-slurm.log").read_text().startswith(FAILED)
    monkeypatch.setattr(slices, "NAMES", ("images",))
    assert slices.main(["all"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["== make test: passed", PASSED.splitlines()[1]]


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One whose `make test` passes, and `make test-slurm` if ignored/fixed exists."""
    (tmp_path / "passed").write_text(PASSED)
    (tmp_path / "Makefile").write_text("test:\n\t@cat passed\ntest-slurm:\n\t@cat passed; test -e ignored/fixed\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    for words in (["init", "-q"], ["config", "user.name", "a"], ["config", "user.email", "a"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    subprocess.run(["git", "commit", "-qm", "first"], cwd=tmp_path, check=True)
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    monkeypatch.setattr(slices, "LOGS", tmp_path / "ignored")
    monkeypatch.setattr(slices, "NAMES", ("slurm",))
    return tmp_path


def test_sources_that_change_meanwhile_have_not_passed(repository: Path, capsys) -> None:
    """Neither those of the end nor, after a return to them, those of the beginning."""
    rule = "test:\n\t@cat passed; date +%N > when; git add when; git commit -qm changed\ntest-slurm:\n\t@cat passed\n"
    (repository / "Makefile").write_text(rule)
    subprocess.run(["git", "commit", "-qam", "second"], cwd=repository, check=True)
    for back in ("HEAD", "HEAD~1"):
        subprocess.run(["git", "reset", "-q", "--hard", back], cwd=repository, check=True)
        assert slices.main(["all"]) == 0
        assert "== make test: has passed" not in capsys.readouterr().out


def test_a_stopped_run_of_all_continues(repository: Path, capsys) -> None:

    def begun() -> list[str]:
        words = capsys.readouterr().out.splitlines()
        return [line.split()[-1] for line in words if re.fullmatch("== make [a-z-]+", line)]

    assert slices.main(["all"]) == 1
    assert begun() == ["test", "test-slurm"]
    (repository / "ignored" / "fixed").touch()
    assert slices.main(["all"]) == 0
    assert begun() == ["test-slurm"]
    assert slices.main(["all"]) == 0
    assert begun() == []
    assert slices.main(["slurm"]) == 0
    assert begun() == ["test-slurm"]
    (repository / "passed").write_text(PASSED + "changed\n")
    for _ in range(2):
        assert slices.main(["all"]) == 0
        assert begun() == ["test", "test-slurm"]


def test_unknown_slice_is_refused() -> None:
    done = subprocess.run([sys.executable, slices.__file__, "slrum"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "received slrum; expected all, touched, or names of ranks, elastic" in done.stdout
