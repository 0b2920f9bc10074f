"""The table of subcommands and the way to one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tfdist import __version__, errors
from tfdist.command.main import COMMANDS, Command, main, overview


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Command]:
    """Two subcommands; `lift WORDS` records its words, and raises what `fail` is set to."""
    module: Any = types.ModuleType("lift_module")
    module.seen, module.fail = [], None

    def lift(words: list[str]) -> int:
        module.seen.append(words)
        if module.fail is not None:
            raise module.fail
        return 7

    module.main = lift
    monkeypatch.setitem(sys.modules, "lift_module", module)
    return {"lift": Command("lift_module", "lift things"), "missing": Command("no_such_module", "never imported")}


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [
        sys.executable,
        "-c",
        "import sys; from tfdist.command.main import main; sys.exit(main())",
        "doctor",
        "--env",
    ]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_words_and_exit_status_pass_through(commands: dict[str, Command]) -> None:
    assert main(["lift", "--help", "-x", "lift"], commands) == 7
    assert sys.modules["lift_module"].seen == [["--help", "-x", "lift"]]


@pytest.mark.parametrize(
    ("error", "status"), [(errors.ConfigError("no such weight"), 2), (errors.BuildError("no such weight"), 1)]
)
def test_errors_for_the_user_are_one_line(
    commands: dict[str, Command], capsys: Any, error: Exception, status: int
) -> None:
    sys.modules["lift_module"].fail = error  # type: ignore[attr-defined]
    assert main(["lift"], commands) == status
    assert capsys.readouterr().err == "tfdist lift: no such weight\n"


def test_other_errors_keep_their_traceback(commands: dict[str, Command]) -> None:
    sys.modules["lift_module"].fail = errors.PeerLostError("gone")  # type: ignore[attr-defined]
    with pytest.raises(errors.PeerLostError):
        main(["lift"], commands)


def test_overview_names_every_command(commands: dict[str, Command], capsys: Any) -> None:
    assert main(["--help"], commands) == 0
    shown = capsys.readouterr().out
    assert "  lift     lift things" in shown and "  missing  never imported" in shown
    assert main([], commands) == 2
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize(
    ("name", "advice"), [("lfit", "did you mean lift?"), ("xyzzy", "the commands are lift, missing")]
)
def test_unknown_command(commands: dict[str, Command], capsys: Any, name: str, advice: str) -> None:
    assert main([name], commands) == 2
    assert f"tfdist: {name}: no such command; {advice}" in capsys.readouterr().err


def test_version(capsys: Any) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tfdist {__version__}\n"


def test_every_command_of_the_table_can_be_called() -> None:
    import importlib

    for command in COMMANDS.values():
        assert callable(importlib.import_module(command.module).main)
        assert command.summary in overview(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["bench", "--help"],
        ["bench", "train", "--help"],
        ["doctor", "--help"],
        ["image", "--help"],
        ["image", "build", "--help"],
    ],
)
def test_help_imports_nothing_heavy(tmp_path: Path, words: list[str], all_packages: None) -> None:
    script = (
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from tfdist.command.main import main\n"
        "try: status = main()\n"
        "except SystemExit as end: status = end.code\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'mpi4py', 'matplotlib', 'docker'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage: tfdist" in done.stdout
