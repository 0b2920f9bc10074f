"""Every command of tfdist in the pages is one that its program takes; many have tests that run them."""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.command.bench import option as bench_option
from tfdist.command.main import COMMANDS
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.host import Host
from tfdist.launch.option import horovod_option
from tfdist.launch.option import option as launch_option

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("docs", "compose", "docker")
PAGES = ["README.md", "CONTRIBUTING.md"]
PAGES += [str(page.relative_to(ROOT)) for room in ROOMS for page in sorted((ROOT / room).rglob("*.md"))]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASSIGNED = re.compile(r"[A-Z_]+=")


def commands_of(page: str) -> Iterator[list[str]]:
    """The words of each, with what the block has assigned to variables."""
    for block in BLOCK.findall((ROOT / page).read_text()):
        variables: dict[str, str] = {}
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(string.Template(line).safe_substitute(variables), comments=True)
            if words and all(ASSIGNED.match(word) for word in words):
                variables.update(word.split("=", 1) for word in words)
            elif words:
                yield words


FOUND = [(page, words) for page in PAGES for words in commands_of(page)]


def of_program(name: str) -> list[tuple[str, list[str]]]:
    """Its commands: page, and the words behind the name."""
    return [(page, words[words.index(name) + 1 :]) for page, words in FOUND if name in words[:-1]]


def allocation(wanted: str | None) -> Allocation:
    return Allocation("a manager", (Host("n1", 6), Host("n2", 6)), "its variables")


@pytest.mark.parametrize(("page", "words"), of_program("tfdistrun"))
def test_tfdistrun_takes_it(page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("num-proc: 2\n")
    known, command = launch_option.parse(words, allocation)
    assert known.check_build or command
    assert horovod_option.notes(known) == []


@pytest.mark.parametrize(("page", "words"), of_program("tfdist"))
def test_tfdist_has_it(page: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert words[0] in COMMANDS
    if words[0] == "bench":
        monkeypatch.chdir(ROOT / "benchmarks" / "scale")
        bench_option.parse(words[1:])


def test_files_and_targets_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    seen = 0
    for page, words in FOUND:
        command = [word for word in words if not ASSIGNED.match(word)]
        if command[:3] == ["docker", "compose", "-f"]:
            assert (ROOT / command[3]).is_file(), (page, words)
            seen += 1
        if command and command[0] == "make":
            assert command[1] in targets, (page, words)
            seen += 1
    assert seen > 5


def test_pages_have_commands() -> None:
    assert len(of_program("tfdistrun")) > 20
    assert len(of_program("tfdist")) > 15
    assert not [words for _, words in FOUND if os.path.isabs(words[0])]
