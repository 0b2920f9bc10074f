"""Every gate of tools/gates.py on a source that meets it and on one that does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cpp_source
import gates

TOOL = Path(gates.__file__)


def found(path: str, text: str) -> list[tuple[int, str, str]]:
    """What is over a gate in one file, without the gates on the whole tree."""
    findings = gates.check([gates.Source(path, text)])
    return [(f.line, f.name, f.gate) for f in findings if f.gate not in ("readme", "test-ratio")]


def python_function(lines: int, docstring: str = "") -> str:
    body = [docstring] if docstring else []
    return "\n".join(["def f():", *body, *["    pass"] * (lines - 1)]) + "\n"


def test_function_of_sixty_lines_is_allowed_and_its_docstring_is_not_counted() -> None:
    assert found("tfdist/a.py", python_function(60)) == []
    assert found("tfdist/a.py", python_function(60, '    """One.\n\n    Two.\n    """')) == []


def test_function_of_sixty_one_lines_is_found() -> None:
    (finding,) = (f for f in gates.check([gates.Source("tfdist/a.py", python_function(61))]) if f.name)
    assert str(finding).startswith("tfdist/a.py:1 f [function-lines] 61 lines, 60 are allowed. Move")


def test_names_are_qualified_and_nested_functions_count_on_their_own() -> None:
    branches = "\n".join(f"            if a == {i}: pass" for i in range(15))
    text = f"class A:\n    def f(self, a):\n        def g():\n{branches}\n        return g\n"
    assert found("tfdist/a.py", text) == [(3, "A.f.g", "complexity")]


@pytest.mark.parametrize(
    ("statement", "branches"),
    [
        ("if a: pass", 1),
        ("if a: pass\n  elif b: pass\n  else: pass", 2),
        ("x = a and b or c", 2),
        ("x = 1 if a else 2", 1),
        ("x = [i for i in a if i]", 2),
        ("for i in a: pass", 1),
        ("while a: pass", 1),
        ("with a: pass", 0),
        ("assert a", 1),
        ("x = lambda: a or b", 1),
        ("try: pass\n  except ValueError: pass\n  except TypeError: pass\n  finally: pass", 2),
        ("match a:\n    case 1: pass\n    case int() if b: pass\n    case _: pass", 2),
    ],
)
def test_python_complexity(statement: str, branches: int) -> None:
    text = f"def f(a, b, c):\n  {statement}\n"
    (function,) = gates._functions(gates.Source("tfdist/a.py", text))
    assert function.complexity == 1 + branches


@pytest.mark.parametrize(
    ("signature", "count"),
    [("", 0), ("self, a", 1), ("cls, /, a, *, b", 2), ("a, b=1, *args, c, **kwargs", 5), ("a, /, b, *, c", 3)],
)
def test_python_parameters(signature: str, count: int) -> None:
    (function,) = gates._functions(gates.Source("tfdist/a.py", f"def f({signature}): pass\n"))
    assert function.parameters == count


def test_eight_parameters_are_found_in_both_languages() -> None:
    assert found("tfdist/a.py", "def f(a, b, c, d, e, f, g, h): pass\n") == [(1, "f", "parameters")]
    parameters = ", ".join(f"int a{i}" for i in range(8))
    assert found("tfdist/csrc/core/a.cc", f"void F({parameters}) {{}}\n") == [(1, "F", "parameters")]
    assert found("tfdist/a.py", "def f(self, a, b, c, d, e, f, g): pass\n") == []


CPP = [
    ("void F(int a, int b) {\n}", "F", 2, 1),
    ("template <typename T, class = std::enable_if_t<(sizeof(T) > 1)>>\nvoid F(T&& a) { auto&& b = a; }", "F", 1, 1),
    ("A::A(int a, std::map<int, int> m = {}) : a_{a}, m_(m) { if (a && m_) return; }", "A::A", 2, 3),
    ("std::map<int, int> Foo<T>::Bar(int a) const noexcept(true) { return {}; }", "Foo<T>::Bar", 1, 1),
    ("bool Half::operator==(const Half& o) const { return o.a == 1 || o.b == 2; }", "Half::operator==", 1, 2),
    ("int operator()(int i, int j) { return i; }", "operator()", 2, 1),
    ("A::~A() { for (;;) { } }", "A::~A", 0, 2),
    ("auto F(void) -> std::vector<int> { switch (x) { case 1: case 2: break; default: break; } }", "F", 0, 3),
    ("[[nodiscard]] Status Engine::Run() { return [](int a) { return a ? 1 : 2; }(3); }", "Engine::Run", 0, 2),
    ('REGISTER_OP("X").SetShapeFn([](Context* c) { if (c) return 1; return 0; });', "REGISTER_OP lambda", 1, 2),
    ("auto f = [&] { while (true) { } };", "auto lambda", 0, 2),
    ("TEST(Suite, Name) { }", "TEST", 2, 1),
    ('extern "C" {\nint f(int a) { return a; }\n}', "f", 1, 1),
    ("namespace a::b {\nclass E : public B<int> {\n public:\n  int Get() const { return 1; }\n};\n}", "Get", 0, 1),
    ("struct alignas(64) S {\n  int a[2] = {1, 2};\n  int b{3};\n  void F() { }\n};", "F", 0, 1),
    ("void F() { try { G(); } catch (const E& e) { } }", "F", 0, 2),
    ("const char* k = R\"(void g() { if )\";\nvoid F() { char c = '{'; int n = 1'000; /* } */ }  // }", "F", 0, 1),
    ("#define LOOP(x) \\\n  do { \\\n  } while (0) {\nvoid F() {}", "F", 0, 1),
]


@pytest.mark.parametrize(("text", "name", "parameters", "complexity"), CPP)
def test_cpp_function(text: str, name: str, parameters: int, complexity: int) -> None:
    (function,) = cpp_source.functions(text)
    assert (function.name, function.parameters, function.complexity) == (name, parameters, complexity)


@pytest.mark.parametrize(
    "text",
    ["int a[] = {1, 2};", "Foo g(1, {2, 3});", "enum class E : int { kA = 1 };", "void F(int a);", "A() = default;"],
)
def test_cpp_without_a_function(text: str) -> None:
    assert cpp_source.functions(text) == []


def test_long_cpp_function_is_found_after_another() -> None:
    body = "  Call();\n" * 59
    text = f"void Short() {{\n}}\n\nvoid Long() {{\n{body}}}\n"
    assert found("tfdist/csrc/core/a.cc", text) == [(4, "Long", "function-lines")]
    assert found("tfdist/csrc/core/a.cc", text.replace("  Call();\n", "", 1)) == []


def test_cpp_conditional_in_a_body_is_found_and_outside_it_is_not() -> None:
    text = "#ifdef A\nvoid F() {\n#if B\n  G();\n#endif\n}\n#endif\n"
    assert found("tfdist/csrc/core/a.cc", text) == [(3, "F", "conditional")]


@pytest.mark.parametrize("text", ["#if A\nvoid F() {\n#else\nvoid F(int) {\n#endif\n}\n", "void F() { }\n}\n"])
def test_unbalanced_cpp_is_an_error_and_never_a_pass(text: str) -> None:
    ((_, _, gate),) = found("tfdist/csrc/core/a.cc", text)
    assert gate == "syntax"


def test_broken_python_is_an_error() -> None:
    assert found("tfdist/a.py", "x = 1\ndef f(:\n") == [(2, "", "syntax")]


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


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/a.py", "import time\ndef test():\n    time.sleep(1)\n"),
        ("tests/a.py", "from time import sleep\ndef test():\n    sleep(1)\n"),
        ("tests/cpp/a.cc", "void F() {\n  std::this_thread::\n      sleep_for(x);\n}\n"),
    ],
)
def test_sleep_in_a_test(path: str, text: str) -> None:
    ((line, _, gate),) = found(path, text)
    assert (line, gate) == (3, "sleep")
    assert found(path.replace("tests/", "tfdist/"), text) == []


@pytest.mark.parametrize(
    ("handler", "over"),
    [
        ("except: raise", True),
        ("except Exception: pass", True),
        ("except BaseException: ...", True),
        ("except Exception as e: log(e)", False),
        ("except ValueError: pass", False),
    ],
)
def test_swallowed_error(handler: str, over: bool) -> None:
    text = f"def f():\n    try:\n        g()\n    {handler}\n"
    assert found("tfdist/a.py", text) == ([(4, "f", "except")] if over else [])


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


FINDING = gates.Finding("tfdist/a.py", 3, "A.f", "parameters", "9 parameters")


def test_exception_takes_out_exactly_its_finding() -> None:
    other = gates.Finding("tfdist/a.py", 3, "A.f", "complexity", "20 paths")
    text = "# comment\n\ntfdist/a.py:A.f  parameters  carries a signature of another project\n"
    assert gates.apply_exceptions([FINDING, other], text) == [other]


def test_exception_that_is_not_needed_is_an_error() -> None:
    (problem,) = gates.apply_exceptions([], "\ntfdist/a.py:f  parameters  it once had nine of them\n")
    assert (problem.path, problem.line, problem.gate) == (gates.EXCEPTIONS, 2, "exception")
    assert "Delete the line" in problem.message


@pytest.mark.parametrize(
    "line", ["tfdist/a.py:A.f", "tfdist/a.py:A.f parameters", "tfdist/a.py:A.f parameters why not"]
)
def test_exception_without_a_reason_excepts_nothing(line: str) -> None:
    problems = gates.apply_exceptions([FINDING], line)
    assert [problem.gate for problem in problems] == ["parameters", "exception"]


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
    done = run_tool(checkout)
    assert (done.returncode, done.stdout) == (0, "gates: all gates hold; 1 files, no test lines a product line\n")


def test_command_reads_files_not_yet_added_and_the_exceptions(checkout: Path) -> None:
    (checkout / "tests").mkdir()
    (checkout / "tests" / "utils.py").write_text("x = 1\n")
    done = run_tool(checkout)
    assert done.returncode == 1
    assert done.stdout.startswith("tests/utils.py:1 [file-name] 'utils' says nothing")
    (checkout / "tools").mkdir()
    (checkout / gates.EXCEPTIONS).write_text("tests/utils.py  file-name  named by a foreign tool\n")
    assert run_tool(checkout).returncode == 0


def test_this_checkout_names_only_exceptions_that_have_a_reason() -> None:
    text = (TOOL.parent / "gate_exceptions.txt").read_text()
    problems = gates.apply_exceptions([], text)
    assert all("Delete the line" in problem.message for problem in problems)


def test_page_for_contributors_has_the_limits() -> None:
    page = (TOOL.parents[1] / "docs" / "contributing.md").read_text()
    (paragraph,) = re.findall(r"^\*\*Gates\*\*.*?\n\n", page, re.MULTILINE | re.DOTALL)
    named = [int(number) for number in re.findall(r"\d+", paragraph)]
    limits = [gates.MAX_FUNCTION_LINES, gates.MAX_COMPLEXITY, gates.MAX_PARAMETERS, gates.MAX_FILE_LINES]
    assert named == [*limits, gates.MAX_FOLDER_FILES, gates.MAX_README_LINES]
