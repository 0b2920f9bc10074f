"""Tests of tfdist.system.program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.system import program


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:/usr/bin:/bin")


def test_python_is_ours() -> None:
    assert program.resolve(["python", "t.py", "--lr", "3"]) == (sys.executable, "t.py", "--lr", "3")
    assert program.foreign_interpreter([sys.executable, "t.py"]) is None


def test_python_of_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    resolved = program.resolve(["python", "t.py"])
    assert resolved[0] == str(tmp_path / "bin/python")
    assert "PATH finds" in (program.foreign_interpreter(resolved) or "")


def test_python_that_path_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert program.resolve(["python3", "t.py"])[0] == sys.executable


def test_module_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/other.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    for name in ("t", "train.main", "other", "json.tool", "__main__"):
        assert program.resolve([sys.executable, "-m", name]) == (sys.executable, "-m", name)
    assert program.resolve([sys.executable, "-m", "gone.x"], check_files=False)[2] == "gone.x"
    (tmp_path / "more/gone").mkdir(parents=True)
    assert program.resolve([sys.executable, "-m", "gone.x"], folders=[str(tmp_path / "more")])[2] == "gone.x"
    with pytest.raises(ConfigError, match=f"gone.x: no such module; cwd is {tmp_path}"):
        program.resolve([sys.executable, "-m", "gone.x"])


def test_other_programs() -> None:
    assert os.path.isabs(program.resolve(["sh", "-c", "x"])[0])
    assert program.resolve(["no-such", "x"], check_files=False) == ("no-such", "x")
    assert program.foreign_interpreter(["/bin/sh"]) is None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command to run"),
        (["python", "-u", "no.py"], "no.py: no such file; cwd is "),
        (["t.py"], "write: python t.py"),
        (["no.py"], "no.py: no such file"),
        (["./no"], "./no: no such file"),
        (["no-such"], "no such command on PATH; use its full path"),
        (["train.sh"], "train.sh is not on PATH; use its full path: .*/train.sh"),
        (["./plain.sh"], r"./plain.sh is not executable; run chmod \+x .*/plain.sh"),
        (
            ["./train.sh"],
            "./train.sh cannot be run: its first line names the interpreter '/no/such', which does not exist",
        ),
        (["./"], "./ is a folder; use the full path of a program"),
    ],
)
def test_missing(command: list[str], message: str, tmp_path: Path) -> None:
    for name, mode in (("plain.sh", 0o644), ("train.sh", 0o755)):
        (tmp_path / name).write_text("#!/no/such\n")
        (tmp_path / name).chmod(mode)
    with pytest.raises(ConfigError, match=message):
        program.resolve(command)


def test_interpreter_of_another_host_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/there/only\n")
    (tmp_path / "train.sh").chmod(0o755)
    assert program.resolve(["./train.sh"], check_files=False) == (str(tmp_path / "train.sh"),)


def test_obstacle_that_the_kernel_names() -> None:
    assert program.obstacle("/bin/sh", OSError(12, "Cannot allocate memory")) == "[Errno 12] Cannot allocate memory"


@pytest.mark.parametrize(
    ("arguments", "script"),
    [
        ([], None),
        (["a.py", "-m"], "a.py"),
        (["-X", "dev", "-W", "error", "-u", "a.py"], "a.py"),
        (["-Xdev", "a.py"], "a.py"),
        (["-m", "pkg"], None),
        (["-mpkg"], None),
        (["-c", "print(1)"], None),
        (["-"], None),
    ],
)
def test_python_script(arguments: list[str], script: str | None) -> None:
    assert program.python_script(arguments) == script
