#!/usr/bin/env python3
"""The gates on size, shape and hygiene that no linter has, as one command. It measures and reports.

Run it in a checkout: `python tools/gates.py`. It reads every file that git tracks or would track. `lizard` measures the
functions of both languages; the parameters of Python's, sleeping tests and swallowed errors are ruff's rules
(pyproject.toml). The last line counts lines of code: without comments, docstrings and empty lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

_path = list(sys.path)
import lizard  # noqa: E402

sys.path[:] = _path  # lizard puts the folder of the running program there, which is the checkout for some

MAX_FUNCTION_LINES = 60
MAX_COMPLEXITY = 15
MAX_PARAMETERS = 7
MAX_FILE_LINES = 600
MAX_README_LINES = 60
MAX_FOLDER_FILES = 14
MAX_TEST_NAME = 60
MIN_TEST_RATIO = 0.7
CODE = frozenset({".py", ".cc", ".h", ".cu"})
SIZED = CODE | {".sh"}
NOT_PRODUCT = ("tests/", "examples/", "benchmarks/", "docs/")
PACKAGES = ("tfdist/", "callbacks/", "data_service/")
ROOMS = (*PACKAGES, "tools/")
FORBIDDEN_WORDS = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base"})
TEST_NAME = re.compile(r"(?:\s*def |TEST\()(?=test_|[A-Z])(\w+)")
CPP_CONDITIONAL = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif)\b")
CPP_SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep)\b")
# What only one machine or one network has. Written so that this file does not contain what it looks for.
MACHINE_PATTERNS = (
    (re.compile(r"(?<![\w.$}~])/(?:home|Users|root|work|workspace)/\w"), "an absolute path of one machine"),
    (
        re.compile(r"\b(?:py[p]i|test\.py[p]i)\.org\b|pythonhoste[d]\.org|index[-_]ur[l]\b", re.IGNORECASE),
        "a package index",
    ),
    (re.compile(r"\b[\w-]+\.(?:interna[l]|cor[p]|intrane[t])\b"), "the name of a private host"),
)


@dataclass(frozen=True, order=True)
class Finding:
    """One thing over its gate. `name` is empty where the whole file is meant."""

    path: str
    line: int
    name: str
    gate: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name + ' ' if self.name else ''}[{self.gate}] {self.message}"


@dataclass(frozen=True)
class Source:
    """A tracked text file."""

    path: str
    text: str

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def is_cpp(self) -> bool:
        return self.suffix in CODE - {".py"}

    @cached_property
    def measured(self) -> Any:
        """What lizard says: `nloc`, and `function_list` with the lines, paths and parameters of each function."""
        return lizard.analyze_file.analyze_source_code(self.path, self.text)


def file_length(source: Source) -> Iterator[Finding]:
    if source.suffix in SIZED and source.lines > MAX_FILE_LINES:
        message = f"{source.lines} lines, {MAX_FILE_LINES} are allowed. Give one of its concepts a file of its own."
        yield Finding(source.path, MAX_FILE_LINES + 1, "", "file-lines", message)


def file_name(source: Source) -> Iterator[Finding]:
    if source.suffix not in SIZED:
        return
    path = PurePosixPath(source.path)
    for part in (*path.parent.parts, path.stem):
        for word in sorted(FORBIDDEN_WORDS.intersection(part.lower().strip("_").split("_"))):
            message = f"'{part}' says nothing with the word '{word}'. Name the concept, as a singular noun."
            yield Finding(source.path, 1, "", "file-name", message)


def machine_facts(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        for pattern, meaning in MACHINE_PATTERNS:
            match = pattern.search(line)
            if match:
                message = f"'{match.group()}' is {meaning}. Use a relative path, a variable or an option."
                yield Finding(source.path, number, "", "machine", message)


def function_size(source: Source) -> Iterator[Finding]:
    for function in source.measured.function_list if source.suffix in CODE else ():
        measured = [
            ("function-lines", function.nloc, MAX_FUNCTION_LINES, "lines", "Move a step of it into a function."),
            ("complexity", function.cyclomatic_complexity, MAX_COMPLEXITY, "paths", "Make a table of the decisions."),
        ]
        if source.is_cpp:
            count = function.parameter_count
            measured.append(("parameters", count, MAX_PARAMETERS, "parameters", "Pass an options object."))
        for gate, value, allowed, unit, remedy in measured:
            if value > allowed:
                message = f"{value} {unit}, {allowed} are allowed. {remedy}"
                yield Finding(source.path, function.start_line, function.name, gate, message)


def cpp_conditional(source: Source) -> Iterator[Finding]:
    if not source.is_cpp:
        return
    lines = source.text.splitlines()
    message = "#if inside a function body. Choose between two functions, or two files, outside of it."
    for function in source.measured.function_list:
        for number in range(function.start_line + 1, function.end_line):
            if CPP_CONDITIONAL.match(lines[number - 1]):
                yield Finding(source.path, number, function.name, "conditional", message)


def test_name(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1) if source.is_test and source.suffix in CODE else ():
        match = TEST_NAME.match(line)
        if match and len(match[1]) > MAX_TEST_NAME:
            message = f"{len(match[1])} characters, {MAX_TEST_NAME} are allowed. Name what is tested, as a coordinate."
            yield Finding(source.path, number, match[1], "test-name", message)


def cpp_sleep(source: Source) -> Iterator[Finding]:
    message = "a test sleeps. Wait for a condition with a deadline, never for a time."
    for number, line in enumerate(source.text.splitlines(), 1) if source.is_cpp and source.is_test else ():
        if CPP_SLEEP.search(line):
            yield Finding(source.path, number, "", "sleep", message)


def room_readme(sources: list[Source]) -> Iterator[Finding]:
    """Every room that holds code has a README, and it is short."""
    readmes = {source.path: source for source in sources if source.path.endswith("README.md")}
    for room in sorted({room for source in sources if source.suffix in CODE for room in _rooms_of(source.path)}):
        path = f"{room}/README.md"
        if path not in readmes:
            message = "the room has no README. Say what it is for, its door and its neighbours."
            yield Finding(path, 1, "", "readme", message)
        elif readmes[path].lines > MAX_README_LINES:
            message = f"{readmes[path].lines} lines, {MAX_README_LINES} are allowed. Move the guide to docs/."
            yield Finding(path, MAX_README_LINES + 1, "", "readme", message)


def room_size(sources: list[Source]) -> Iterator[Finding]:
    """A folder of the product has few files; a header and its source count once, `__init__.py` does not."""
    files: dict[str, set[str]] = {}
    for source in sources:
        folder, _, name = source.path.rpartition("/")
        if source.suffix in CODE and source.path.startswith(ROOMS) and name != "__init__.py":
            files.setdefault(folder, set()).add(name.partition(".")[0])
    for folder, names in files.items():
        if len(names) > MAX_FOLDER_FILES:
            message = (
                f"{len(names)} files, {MAX_FOLDER_FILES} are allowed. Give what belongs together a room of its own."
            )
            yield Finding(folder, 1, "", "folder-files", message)


def test_ratio(sources: list[Source]) -> Iterator[Finding]:
    tests, product = ratio_lines(sources)
    if tests < MIN_TEST_RATIO * product:
        missing = int(MIN_TEST_RATIO * product - tests) + 1
        ratio = f"{tests} test lines for {product} product lines is {tests / product:.2f}"
        message = f"{ratio}, {MIN_TEST_RATIO} is needed. {missing} lines of tests are missing."
        yield Finding("tests", 1, "", "test-ratio", message)


FILE_GATES: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    file_length,
    file_name,
    test_name,
    machine_facts,
    function_size,
    cpp_conditional,
    cpp_sleep,
)
TREE_GATES: tuple[Callable[[list[Source]], Iterator[Finding]], ...] = (room_readme, room_size, test_ratio)


def ratio_lines(sources: list[Source]) -> tuple[int, int]:
    """Lines of code in tests and in the product (the tools included: they are tested too)."""
    code = [source for source in sources if source.suffix in CODE]
    tests = sum(source.lines for source in code if source.is_test)
    return tests, sum(source.lines for source in code if not source.path.startswith(NOT_PRODUCT))


def check(sources: list[Source]) -> list[Finding]:
    """Everything over a gate."""
    findings = [finding for source in sources for gate in FILE_GATES for finding in gate(source)]
    findings += [finding for gate in TREE_GATES for finding in gate(sources)]
    return sorted(set(findings))


def code_lines(sources: list[Source]) -> tuple[int, int]:
    """The product's lines of code in Python and in C++."""
    product = [source for source in sources if source.suffix in CODE and source.path.startswith(PACKAGES)]
    python, cpp = ([source.measured.nloc for source in product if source.is_cpp == is_cpp] for is_cpp in (False, True))
    return sum(python), sum(cpp)


def read_tree(root: Path) -> list[Source]:
    """Every text file that git tracks or would track. LICENSE texts are not ours to judge."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    sources = []
    for name in sorted(set(filter(None, listed))):
        path = root / name
        if path.is_file() and not path.is_symlink() and path.name != "LICENSE":
            content = path.read_bytes()
            if b"\0" not in content:
                sources.append(Source(name, content.decode("utf-8", errors="replace")))
    return sources


def main(arguments: list[str]) -> int:
    sources = read_tree(Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1])
    findings = check(sources)
    for finding in findings:
        print(finding)
    verdict = f"{len(findings)} over the gates" if findings else "all gates hold"
    tests, product = ratio_lines(sources)
    ratio = f"{tests / product:.2f}" if product else "no"
    python, cpp = code_lines(sources)
    print(
        f"gates: {verdict}; {len(sources)} files, {ratio} test lines a product line; "
        f"the product has {python} lines of code in Python, {cpp} in C++"
    )
    return 1 if findings else 0


def _rooms_of(path: str) -> Iterator[str]:
    """The room a file of code stands in. Below tfdist/csrc, folders inside a room belong to it."""
    if path.startswith(ROOMS):
        parts = PurePosixPath(path).parent.parts
        if parts[:2] == ("tfdist", "csrc"):
            yield "/".join(parts[:3])
        else:
            yield "/".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
