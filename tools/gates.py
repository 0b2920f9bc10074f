#!/usr/bin/env python3
"""The size, shape and hygiene gates of this project as one command. It measures and reports; it changes nothing.

Run it in a checkout: `python tools/gates.py`. It reads every file that git tracks or would track, and
`tools/gate_exceptions.txt`, where each exception is named with its reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import cpp_source

MAX_FUNCTION_LINES = 60
MAX_COMPLEXITY = 15
MAX_PARAMETERS = 7
MAX_FILE_LINES = 600
MAX_README_LINES = 60
MAX_FOLDER_FILES = 14
MIN_TEST_RATIO = 0.7
EXCEPTIONS = "tools/gate_exceptions.txt"
CODE = frozenset({".py", ".cc", ".h", ".cu"})
SIZED = CODE | {".sh"}
NOT_PRODUCT = ("tests/", "examples/", "benchmarks/", "docs/")
ROOMS = ("tfdist/", "callbacks/", "data_service/", "tools/")
FORBIDDEN_WORDS = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base"})
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

    @property
    def key(self) -> tuple[str, str]:
        return (f"{self.path}:{self.name}" if self.name else self.path, self.gate)

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
    for function in _functions(source):
        measured = (
            ("function-lines", function.lines, MAX_FUNCTION_LINES, "lines", "Move a step of it into a function."),
            ("complexity", function.complexity, MAX_COMPLEXITY, "paths", "Take a decision out, or make a table of it."),
            ("parameters", function.parameters, MAX_PARAMETERS, "parameters", "Pass an options object."),
        )
        for gate, value, allowed, unit, remedy in measured:
            if value > allowed:
                message = f"{value} {unit}, {allowed} are allowed. {remedy}"
                yield Finding(source.path, function.line, function.name, gate, message)


def cpp_conditional(source: Source) -> Iterator[Finding]:
    if source.suffix in CODE - {".py"}:
        for line, name in cpp_source.conditionals_in_functions(source.text):
            message = "#if inside a function body. Choose between two functions, or two files, outside of it."
            yield Finding(source.path, line, name, "conditional", message)


def test_sleep(source: Source) -> Iterator[Finding]:
    if not source.is_test:
        return
    message = "a test sleeps. Wait for a condition with a deadline (the fixture wait_until), never for a time."
    if source.suffix == ".py":
        for node, name in _named_nodes(ast.parse(source.text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                yield Finding(source.path, node.lineno, name, "sleep", message)
    elif source.suffix in CODE:
        for token in cpp_source.tokenize(source.text)[0]:
            if token.text in ("sleep_for", "sleep_until", "usleep", "nanosleep"):
                yield Finding(source.path, token.line, "", "sleep", message)


def swallowed_error(source: Source) -> Iterator[Finding]:
    if source.suffix != ".py":
        return
    for node, name in _named_nodes(ast.parse(source.text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            message = "a bare except also catches Ctrl-C and SystemExit. Name the exception."
            yield Finding(source.path, node.lineno, name, "except", message)
        elif ast.unparse(node.type) in ("Exception", "BaseException") and all(map(_does_nothing, node.body)):
            message = f"'except {ast.unparse(node.type)}' with an empty body loses every error. Name the one expected."
            yield Finding(source.path, node.lineno, name, "except", message)


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
    machine_facts,
    function_size,
    cpp_conditional,
    test_sleep,
    swallowed_error,
)
TREE_GATES: tuple[Callable[[list[Source]], Iterator[Finding]], ...] = (room_readme, room_size, test_ratio)


def ratio_lines(sources: list[Source]) -> tuple[int, int]:
    """Lines of code in tests and in the product (the tools included: they are tested too)."""
    code = [source for source in sources if source.suffix in CODE]
    tests = sum(source.lines for source in code if source.is_test)
    return tests, sum(source.lines for source in code if not source.path.startswith(NOT_PRODUCT))


def check(sources: list[Source]) -> list[Finding]:
    """Everything over a gate, before exceptions."""
    findings: list[Finding] = []
    for source in sources:
        try:
            for file_gate in FILE_GATES:
                findings += file_gate(source)
        except (SyntaxError, cpp_source.CppSyntaxError) as error:
            line = (error.lineno if isinstance(error, SyntaxError) else error.line) or 1
            findings.append(Finding(source.path, line, "", "syntax", f"cannot be read: {error}"))
    for tree_gate in TREE_GATES:
        findings += tree_gate(sources)
    return sorted(set(findings))


def apply_exceptions(findings: list[Finding], text: str) -> list[Finding]:
    """Takes out what `text` excepts by name, and adds what is wrong with `text` itself.

    A line is `path[:name]  gate  reason`. `name` is the function, qualified by its class; a whole file has none.
    """
    excepted: dict[tuple[str, str], int] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split(maxsplit=2)
        if len(fields) < 3 or len(fields[2].split()) < 3:
            message = f"'{line.strip()}' is not 'path[:name]  gate  reason' with a reason of three words or more."
            problems.append(Finding(EXCEPTIONS, number, "", "exception", message))
            continue
        excepted[(fields[0], fields[1])] = number
    needed = {finding.key for finding in findings}
    for key, number in excepted.items():
        if key not in needed:
            message = f"'{key[0]}' keeps the gate '{key[1]}' by now, or is gone. Delete the line."
            problems.append(Finding(EXCEPTIONS, number, "", "exception", message))
    return [finding for finding in findings if finding.key not in excepted] + problems


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
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    sources = read_tree(root)
    exceptions = root / EXCEPTIONS
    findings = apply_exceptions(check(sources), exceptions.read_text() if exceptions.is_file() else "")
    tests, product = ratio_lines(sources)
    for finding in findings:
        print(finding)
    verdict = f"{len(findings)} over the gates" if findings else "all gates hold"
    ratio = f"{tests / product:.2f}" if product else "no"
    print(f"gates: {verdict}; {len(sources)} files, {ratio} test lines a product line")
    return 1 if findings else 0


def _functions(source: Source) -> list[cpp_source.Function]:
    if source.suffix == ".py":
        tree = ast.parse(source.text)
        return [
            _measure(node, name)
            for node, name in _named_nodes(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
    return cpp_source.functions(source.text) if source.suffix in CODE else []


def _named_nodes(tree: ast.AST, name: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node with the qualified name of the function or class it is, or is in."""
    for node in ast.iter_child_nodes(tree):
        own = name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own = f"{name}.{node.name}" if name else node.name
        yield node, own
        yield from _named_nodes(node, own)


def _measure(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> cpp_source.Function:
    """Length without the docstring, and parameters without self or cls."""
    first = node.body[0]
    docstring_lines = 0
    if ast.get_docstring(node, clean=False) is not None:
        docstring_lines = (first.end_lineno or first.lineno) - first.lineno + 1
    signature = node.args
    positional = [*signature.posonlyargs, *signature.args]
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    parameters = len(positional) + len(signature.kwonlyargs) + bool(signature.vararg) + bool(signature.kwarg)
    end_line = (node.end_lineno or node.lineno) - docstring_lines
    return cpp_source.Function(name, node.lineno, end_line, parameters, 1 + _branches(node))


def _branches(node: ast.AST) -> int:
    """Decisions in a function. A function or class inside it has its own count; a lambda has not."""
    count = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(child, ast.BoolOp):
            count += len(child.values) - 1
        elif isinstance(child, ast.comprehension):
            count += 1 + len(child.ifs)
        elif isinstance(child, ast.match_case):
            wildcard = isinstance(child.pattern, ast.MatchAs) and child.pattern.pattern is None
            count += not wildcard or child.guard is not None
        else:
            branching = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert)
            count += isinstance(child, branching)
        count += _branches(child)
    return count


def _does_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, (ast.Pass, ast.Continue))


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
