"""Every command of tfdist in the pages is one that its parser takes, and the files that commands name are there.

Which test runs the commands of a page is in tests/examples/test_guide.py.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import string
from collections.abc import Iterator
from itertools import takewhile
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
PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md"]
PAGES += [str(page.relative_to(ROOT)) for room in ROOMS for page in sorted((ROOT / room).rglob("*.md"))]
BLOCK = re.compile(r"^ *```bash\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ASSIGNED = re.compile(r"[A-Z_]+=")
# Words that end a command: the next one begins, or its output goes to a file.
END = re.compile(r"&&?|;|\|\|?|\d?>.*")
# A command in a line of text, where some of its words may be left out.
MENTIONED = re.compile(r"`(tfdist(?:run)?) ([^`]+)`")
OPTION = re.compile(r"-{1,2}[a-z][\w-]*")
# Folders of the repository, whose files commands name from its root.
OURS = re.compile(r"(?:\./)?((?:benchmarks|compose|docker|docs|examples|tests|tools)/[\w./-]+)")


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


def of_program(*names: str) -> list[tuple[str, list[str]]]:
    """Its commands: page, and the words behind the name."""
    found = []
    for page, words in FOUND:
        for name in set(names) & set(words[:-1]):
            rest = words[words.index(name) + 1 :]
            found.append((page, list(takewhile(lambda word: not END.fullmatch(word), rest))))
    return found


def allocation(wanted: str | None) -> Allocation:
    return Allocation("a manager", (Host("n1", 6), Host("n2", 6)), "its variables")


@pytest.mark.parametrize(("page", "words"), of_program("tfdistrun"))
def test_tfdistrun_takes_it(page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("num-proc: 2\n")
    known, command = launch_option.parse(words, allocation)
    assert known.check_build or command
    assert horovod_option.notes(known) == []


def parser_of(name: str) -> argparse.ArgumentParser:
    """That of `tfdist NAME`."""
    made = launch_option if name == "run" else importlib.import_module(COMMANDS[name].module)
    parser: argparse.ArgumentParser = made.parser()
    return parser


@pytest.mark.parametrize(("page", "words"), of_program("tfdist", "tfdist.command"))
def test_tfdist_takes_it(page: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, *rest = words
    assert name in COMMANDS
    if name == "bench":
        monkeypatch.chdir(ROOT / "benchmarks" / "scale")
        bench_option.parse(rest)
    elif rest != ["--help"]:
        parser_of(name).parse_args(rest)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """With those of the commands below it."""
    found = {name for action in parser._actions for name in action.option_strings}
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found.union(*(options_of(each) for action in below for each in action.choices.values()))


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_in_the_text_are_there(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for program, rest in MENTIONED.findall(text):
        name, *words = shlex.split(f"run {rest}" if program == "tfdistrun" else rest)
        # Behind the options of tfdistrun stands the program that it starts.
        words = list(takewhile(lambda word: word not in ("python", "tfdist"), words))
        if name in COMMANDS:
            assert {word for word in map(bare, words) if OPTION.fullmatch(word)} <= options_of(parser_of(name)), rest


def bare(word: str) -> str:
    return word.strip("[],.").partition("=")[0]


def test_files_and_targets_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    seen = 0
    for page, words in FOUND:
        command = [word for word in words if not ASSIGNED.match(word)]
        for path in filter(None, map(OURS.fullmatch, takewhile(lambda word: not END.fullmatch(word), command))):
            assert (ROOT / path[1]).exists(), (page, words)
            seen += 1
        if command and command[0] == "make":
            assert command[1] in targets, (page, words)
            seen += 1
    assert seen > 20


def test_pages_have_commands() -> None:
    assert len(of_program("tfdistrun")) > 60
    assert len(of_program("tfdist")) > 25
    assert not [words for _, words in FOUND if os.path.isabs(words[0])]
