"""Every gate of tools/gates.py on a source that meets it and on one that does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gates

TOOL = Path(gates.__file__)


def found(path: str, text: str) -> list[tuple[int, str, str]]:
    """What is over a gate in one file, without the gates on the whole tree."""
    findings = gates.check([gates.Source(path, text)])
    return [(f.line, f.name, f.gate) for f in findings if f.gate not in ("readme", "test-ratio")]


def python_function(lines: int) -> str:
    return "\n".join(["def f():", '    """One.', "", "    Two.", '    """', *["    pass"] * (lines - 1)]) + "\n"


def test_sixty_lines_without_docstring_are_allowed() -> None:
    assert found("tfdist/a.py", python_function(60)) == []


def test_function_of_sixty_one_lines_is_found() -> None:
    (finding,) = (f for f in gates.check([gates.Source("tfdist/a.py", python_function(61))]) if f.name)
    assert str(finding).startswith("tfdist/a.py:1 f [function-lines] 61 lines, 60 are allowed. Move")


def test_complex_python_function_is_found_inside_another() -> None:
    branches = "\n".join(f"            if a == {i} or b: pass" for i in range(8))
    text = f"class A:\n    def f(self, a, b):\n        def g():\n{branches}\n        return g\n"
    assert [(line, gate) for line, _, gate in found("tfdist/a.py", text)] == [(3, "complexity")]


def test_many_cpp_parameters_are_found() -> None:
    parameters = ", ".join(f"std::map<int, int> a{i}" for i in range(7))
    assert found("tfdist/csrc/core/a.cc", f"void F({parameters}) {{}}\n") == []
    assert found("tfdist/csrc/core/a.cc", f"void F({parameters}, int b) {{}}\n") == [(1, "F", "parameters")]


def test_complex_cpp_method_is_found() -> None:
    cases = " ".join(f"case {i}: G(); break;" for i in range(15))
    text = f"Status A<T>::F() const {{ switch (x) {{ {cases} }} }}\n"
    assert [(line, gate) for line, _, gate in found("tfdist/csrc/core/a.cc", text)] == [(1, "complexity")]


def test_long_cpp_function_is_found_after_another() -> None:
    body = "  Call();\n" * 59
    text = f"void Short() {{\n}}\n\nvoid Long() {{\n{body}}}\n"
    assert found("tfdist/csrc/core/a.cc", text) == [(4, "Long", "function-lines")]
    assert found("tfdist/csrc/core/a.cc", text.replace("  Call();\n", "", 1)) == []


def test_cpp_conditional_is_found_in_bodies_only() -> None:
    text = "#ifdef A\nvoid F() {\n#if B\n  G();\n#endif\n}\n#endif\n"
    assert found("tfdist/csrc/core/a.cc", text) == [(3, "F", "conditional")]


def test_file_length() -> None:
    assert found("tfdist/a.h", "\n" * 600) == []
    assert found("tfdist/a.h", "\n" * 601) == [(601, "", "file-lines")]
    assert found("docs/guide.md", "\n" * 601) == []


@pytest.mark.parametrize("path", ["tfdist/utils.py", "tfdist/mpi_helpers.py", "tfdist/common/a.py", "tests/base.cc"])
def test_name_that_says_nothing(path: str) -> None:
    assert found(path, "") == [(1, "", "file-name")]


@pytest.mark.parametrize("path", ["tfdist/database.py", "tfdist/baseline.py", "docs/common.md"])
def test_name_that_only_looks_like_it(path: str) -> None:
    assert found(path, "") == []


@pytest.mark.parametrize(
    ("path", "line"), [("tests/test_a.py", "    def {}(x):"), ("tests/cpp/test_a.cc", "TEST({}) {{")]
)
def test_length_of_test_names(path: str, line: str) -> None:
    name = "test_" + "a" * 55 if path.endswith(".py") else "A" * 60
    assert found(path, "\n" + line.format(name) + "\n") == []
    assert found(path, "\n" + line.format(name + "b") + "\n") == [(2, name + "b", "test-name")]


@pytest.mark.parametrize(
    "line",
    ["path = '/" + "home/someone/x'", "cd /" + "root/x", "see https://pypi" + ".org/project", "db.cor" + "p"],
)
def test_fact_of_one_machine(line: str) -> None:
    assert found("docs/a.md", f"first\n{line}\n") == [(2, "", "machine")]


@pytest.mark.parametrize(
    "line", ["$HOME/" + "work/x", "~/" + "work/x", "tests/" + "root/x", "/usr/bin/env", "pip install x"]
)
def test_path_that_holds_anywhere(line: str) -> None:
    assert found("docs/a.md", line) == []


def test_sleep_in_a_cpp_test() -> None:
    text = "void F() {\n  std::this_thread::\n      sleep_for(x);\n}\n"
    assert found("tests/cpp/a.cc", text) == [(3, "", "sleep")]
    assert found("tfdist/csrc/core/a.cc", text) == []


def tree_findings(files: dict[str, str]) -> list[tuple[str, str]]:
    findings = gates.check([gates.Source(path, text) for path, text in files.items()])
    return [(finding.path, finding.gate) for finding in findings]


def test_room_without_readme() -> None:
    files = {"tfdist/launch/a.py": "", "tfdist/csrc/tf/ops/a.cc": "", "tests/a.py": "", "callbacks/a.py": ""}
    rooms = ["callbacks/README.md", "tfdist/csrc/tf/README.md", "tfdist/launch/README.md"]
    assert tree_findings(files) == [(room, "readme") for room in rooms]
    assert tree_findings(files | dict.fromkeys(rooms, "")) == []


def test_long_room_readme() -> None:
    files = {"callbacks/a.py": "", "callbacks/README.md": "\n" * 61, "README.md": "\n" * 200}
    assert tree_findings(files) == [("callbacks/README.md", "readme")]


def test_folder_of_fifteen_files() -> None:
    files = {f"tfdist/launch/{letter}.{suffix}": "" for letter in "abcdefghijklmn" for suffix in ("h", "cc")}
    files |= {"tfdist/launch/__init__.py": "", "tfdist/launch/README.md": "", "tfdist/launch/job/o.py": ""}
    readmes = {"tfdist/launch/job/README.md": ""}
    assert tree_findings(files | readmes) == []
    assert tree_findings(files | readmes | {"tfdist/launch/o.py": ""}) == [("tfdist/launch", "folder-files")]


def test_ratio_of_tests() -> None:
    product = {"tfdist/a.py": "\n" * 50, "setup.py": "\n" * 50, "tfdist/README.md": "", "examples/a.py": "\n" * 500}
    assert tree_findings(product | {"tests/a.py": "\n" * 70}) == []
    assert tree_findings(product | {"tests/a.py": "\n" * 69, "docs/a.py": "\n" * 9}) == [("tests", "test-ratio")]


def run_tool(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    (tmp_path / "ignored.py").write_text("def f(:\n")
    (tmp_path / "library.so").write_bytes(b"\0/" + b"home/someone\0")
    return tmp_path


def test_command_on_a_clean_tree(checkout: Path) -> None:
    (checkout / "tfdist").mkdir()
    (checkout / "tfdist" / "README.md").touch()
    (checkout / "tfdist" / "a.py").write_text('"""Doc."""\n\n# Why.\nx = 1\n')
    (checkout / "tests").mkdir()
    (checkout / "tests" / "a.py").write_text("x = 1\n" * 4)
    done = run_tool(checkout)
    assert (done.returncode, done.stdout) == (
        0,
        "gates: all gates hold; 4 files, 1.00 test lines a product line; the product has 1 lines of code in Python, "
        "0 in C++\n",
    )


def test_command_reads_files_not_yet_added(checkout: Path) -> None:
    (checkout / "tests").mkdir()
    (checkout / "tests" / "utils.py").write_text("x = 1\n")
    done = run_tool(checkout)
    assert done.returncode == 1
    assert done.stdout.startswith("tests/utils.py:1 [file-name] 'utils' says nothing")


def test_page_for_contributors_has_the_limits() -> None:
    page = (TOOL.parents[1] / "docs" / "contributing.md").read_text()
    (paragraph,) = re.findall(r"^\*\*Gates\*\*.*?\n\n", page, re.MULTILINE | re.DOTALL)
    named = [int(number) for number in re.findall(r"\d+", paragraph)]
    limits = [gates.MAX_FUNCTION_LINES, gates.MAX_COMPLEXITY, gates.MAX_PARAMETERS, gates.MAX_FILE_LINES]
    assert named == [*limits, gates.MAX_FOLDER_FILES, gates.MAX_README_LINES, gates.MAX_TEST_NAME]
