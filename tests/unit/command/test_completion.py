"""Tests of the command tfdist completion, in bash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.command import completion
from tfdist.command.main import COMMANDS, main
from tfdist.launch.option import option

# As bash does after the words of a command and a tab.
_COMPLETE = """
eval "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function" "$1" "${COMP_WORDS[$COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def _completed(script: str, folder: Path, *words: str) -> set[str]:
    command = ["bash", "-c", _COMPLETE, "bash", *words]
    variables = {"SCRIPT": script, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_bash(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").touch()
    for words, expected in (
        (["tfdist", "do"], {"doctor"}),
        (["tfdist", "doctor", "--e"], {"--env"}),
        (["tfdist", "bench", "a"], {"allreduce"}),
        (["tfdist", "completion", ""], set(completion.SHELLS)),
        (["tfdist", "run", "--elastic-"], {"--elastic-timeout"}),
        (["tfdistrun", "--no-mpi", "-n"], {"-n", "-np"}),
        (["tfdistrun", "-np", "2", "--config-file", "j"], {"job.yaml"}),
        (["tfdistrun", "-np", "2", "python", "tr"], {"train.py"}),
    ):
        assert _completed(script, tmp_path, *words) == expected, words
    assert _completed(script, tmp_path, "tfdist", "") == set(COMMANDS)
    every = {name for name in option.parser()._option_string_actions if name.startswith("--")}
    assert _completed(script, tmp_path, "tfdistrun", "--") == every


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("tfdistrun", "data-service", "blacklist-cooldown-range"))


def test_without_shtab(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "the extra `completion` of tfdist; install it with: pip install shtab" in capsys.readouterr().err
