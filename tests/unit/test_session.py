"""What tests/conftest.py promises: a leftover process fails the session, the order, the working folder, wait_until."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
TAG = "PYTEST_TFDIST_SESSION"
LEAVE = """
import subprocess, sys
def test_leaves():
    subprocess.Popen([sys.executable, "-c", {script!r}], start_new_session=True, stdout=subprocess.DEVNULL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    (tests / "unit").mkdir(parents=True)
    shutil.copy(CONFTEST, tests / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\n")
    return tmp_path


SIDE_BY_SIDE = ("-n", "2", "--dist", "loadscope")


def run_session(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = (TAG, "PYTEST_XDIST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | variables
    command = [str(Path(sys.executable).parent / "pytest"), "-v", *options, "tests"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("options", [(), SIDE_BY_SIDE])
def test_left_process_fails_the_session_and_is_ended(folder: Path, options: tuple[str, ...]) -> None:
    script = "import signal; signal.pause()"
    (folder / "tests" / "unit" / "test_a.py").write_text(LEAVE.format(script=script))
    done = run_session(folder, *options)
    assert done.returncode == 1, done.stdout
    assert "1 processes of these tests still ran" in done.stdout
    assert script in done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 failed, 1 passed in")
    pid = int(next(line.split(":")[0] for line in done.stdout.splitlines() if line.endswith(script)))
    assert not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_process_that_ends_by_itself_is_waited_for(folder: Path) -> None:
    script = "import threading; threading.Event().wait(0.5)"
    (folder / "tests" / "unit" / "test_a.py").write_text(LEAVE.format(script=script))
    done = run_session(folder)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 passed in")


def test_inner_session_leaves_the_check_to_the_outer_one(folder: Path) -> None:
    script = "import threading; threading.Event().wait(20)"
    (folder / "tests" / "unit" / "test_a.py").write_text(LEAVE.format(script=script))
    inherited = os.environ.get(TAG, "outer")
    done = run_session(folder, **{TAG: inherited})
    assert done.returncode == 0, done.stdout
    listed = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for entry in listed:
        if script.encode() in _read(entry / "cmdline"):
            os.kill(int(entry.name), 9)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_fast_tests_run_first_and_outside_the_checkout(folder: Path) -> None:
    text = "import os\ndef test_a():\n    assert not os.path.samefile('.', {!r})\n"
    for name in ("ranks", "unit", "examples", "zebra", "cpp"):
        (folder / "tests" / name).mkdir(exist_ok=True)
        (folder / "tests" / name / "test_a.py").write_text(text.format(str(folder)))
    (folder / "tests" / "test_architecture.py").write_text(text.format(str(folder)))
    done = run_session(folder)
    assert done.returncode == 0, done.stdout
    order = [line.split("::")[0].removeprefix("tests/") for line in done.stdout.splitlines() if " PASSED" in line]
    assert [name.split("/")[0] for name in order] == [
        "unit",
        "test_architecture.py",
        "cpp",
        "ranks",
        "examples",
        "zebra",
    ]


def test_xdist_groups_world_sizes_and_files(folder: Path) -> None:
    text = """
import pytest
@pytest.mark.parametrize("world", ["mpi-np1", "mpi-np3", "sockets-np3"])
@pytest.mark.parametrize("other", ["x", "y"])
def test_a(other, world): pass
"""
    (folder / "tests" / "ranks").mkdir()
    for name in "abcdef":
        (folder / "tests" / "ranks" / f"test_{name}.py").write_text(text)
        (folder / "tests" / "unit" / f"test_{name}.py").write_text(text)
    (folder / "tests" / "cpp").mkdir()
    (folder / "tests" / "cpp" / "test_cpp.py").write_text(text)
    done = run_session(folder, *SIDE_BY_SIDE)
    assert done.returncode == 0, done.stdout
    places: dict[str, set[str]] = {}
    for worker, file, test in re.findall(r"^\[(gw\d)\] .* PASSED tests/(\S+)::(\S+)", done.stdout, re.MULTILINE):
        part = test.split("-", 1)[1] if file.startswith("ranks") else file
        places.setdefault(part, set()).add(worker)
    for part in ("mpi-np1]", "mpi-np3]", "sockets-np3]", *(f"unit/test_{name}.py" for name in "abcdef")):
        assert len(places[part]) == 1, places
    assert len(set().union(*places.values())) == 2


ON_RANKS = """
import builtins, pytest, tfdist
@pytest.mark.ranks(2)
def test_first(world):
    builtins.left = True
    assert tfdist.rank() == 0
@pytest.mark.ranks(2)
def test_second(world):
    assert tfdist.size() == 2 and not hasattr(builtins, "left")
"""


@pytest.mark.slice("ranks")
def test_ranks_are_started_again_after_a_failed_test(folder: Path) -> None:
    (folder / "tests" / "ranks").mkdir()
    shutil.copy(CONFTEST.parent / "ranks" / "conftest.py", folder / "tests" / "ranks" / "conftest.py")
    (folder / "tests" / "ranks" / "test_a.py").write_text(ON_RANKS)
    options = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'  # of the inner sessions
    (folder / "pyproject.toml").write_text(options)
    done = run_session(folder, TFDIST_TEST_SAMPLE="")  # both transports
    assert re.findall(r"test_(\w+)\[mpi-np2\] (\w+)", done.stdout)[:2] == [("first", "FAILED"), ("second", "PASSED")]
    assert "rank 1:" in done.stdout and "rank 0:" not in done.stdout


def test_wait_until_has_a_condition_and_a_deadline(wait_until: Callable[..., None], tmp_path: Path) -> None:
    answers = iter([False, False, True])
    wait_until(lambda: next(answers))
    with pytest.raises(pytest.fail.Exception, match=r"waited 0.05 seconds for the file"):
        wait_until((tmp_path / "missing").exists, seconds=0.05, what="the file")
