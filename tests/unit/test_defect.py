"""The table of defects fits the repository and the README, and the tool tells a caught one from one that is not."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import defect as tool

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = tool.read()
ROOMS = {"engine", "ops", "optimizer", "callbacks", "elastic", "launcher", "data service", "containers"}
FAKE = """\
[[defect]]
name = "sign"
room = "engine"
file = "product.txt"
old = "+"
new = "-"
test = "test_product.py"
select = "sum"

[[defect]]
name = "unseen"
room = "engine"
file = "product.txt"
old = "# note"
new = "# remark"
test = "test_product.py"

[[defect]]
name = "no-test"
room = "engine"
file = "product.txt"
old = "+"
new = "-"
test = "test_product.py::test_gone"
"""
FAKE_TEST = """\
from pathlib import Path

def test_sum():
    assert eval((Path(__file__).parent / "product.txt").read_text()) == 5
"""


@pytest.mark.parametrize("each", DEFECTS, ids=lambda each: each.name)
def test_each_fits_its_file_and_has_a_test(each: tool.Defect) -> None:
    before = (ROOT / each.file).read_bytes()
    after = each.broken(before)  # which ends where it does not occur once
    assert after != before
    if each.file.endswith(".py"):
        ast.parse(after)
    assert each.room in ROOMS
    if each.test == "tests/cpp":
        assert each.file.startswith("tfdist/csrc/")
        texts = [file.read_text() for file in (ROOT / "tests" / "cpp").rglob("test_*.cc")]
        assert sum(text.count(f"TEST({each.select})") for text in texts) == 1
    else:
        file, *names = each.test.split("::")
        text = (ROOT / file).read_text()
        for name in names:
            assert re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE), f"{file} has no {name}"


def test_distinct_names_nearly_all_for_make_test() -> None:
    assert len(DEFECTS) == len({each.name for each in DEFECTS}) == 46
    assert len({(each.file, each.old) for each in DEFECTS}) == 46
    assert sum(not each.slice for each in DEFECTS) >= 34
    assert Counter(each.room for each in DEFECTS).keys() == ROOMS


def test_the_readme_lists_them() -> None:
    lines = (ROOT / "tests" / "README.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("| `")]
    assert [(name, room, test) for name, room, _, test in rows] == [
        (each.name, each.room, each.shown_test) for each in DEFECTS
    ]
    assert len(lines) - len(rows) <= 60


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with three defects, of which its test catches one."""
    (tmp_path / "defects.toml").write_text(FAKE)
    (tmp_path / "product.txt").write_text("2 + 3  # note")
    (tmp_path / "test_product.py").write_text(FAKE_TEST)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "TABLE", tmp_path / "defects.toml")
    monkeypatch.setattr(tool, "SCRATCH", tmp_path / "build" / "defects")


@pytest.mark.usefixtures("fake")
def test_one_that_no_test_catches_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert tool.main(["check"]) == 1
    output = capsys.readouterr().out
    assert re.search(r"^sign \d+ s caught$", output, re.MULTILINE)
    assert re.search(r"^unseen \d+ s NOT CAUGHT: test_product.py passes$", output, re.MULTILINE)
    assert re.search(r"^no-test .* NOT CAUGHT: .*_gone does not run to its end: exit status 4$", output, re.MULTILINE)
    assert re.fullmatch(r"1 of 3 in 0.\d minutes unseen no-test", output.splitlines()[-1])
    assert tool.main(["check", "sign"]) == 0
    assert (tmp_path / "product.txt").read_text() == "2 + 3  # note", "only a copy is broken"


@pytest.mark.usefixtures("fake")
def test_a_test_that_fails_anyway_catches_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert tool.main(["check", "--baseline", "sign", "unseen"]) == 0
    (tmp_path / "product.txt").write_text("2 + 4  # note")
    assert tool.main(["check", "--baseline", "sign"]) == 1
    assert "NOT PASSED: test_product.py sum fails" in capsys.readouterr().out


@pytest.mark.usefixtures("fake")
def test_a_test_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tool, "LIMIT_SECONDS", 1)
    script = "trap 'echo told; exit 9' INT; echo up; while :; do sleep 0.01; done"
    status, output = tool._run(["bash", "-c", script], tmp_path, {"PATH": "/usr/bin:/bin"})
    assert (status, output.split()) == (tool.TIMED_OUT, ["up", "told"])


@pytest.mark.usefixtures("fake")
def test_wrong_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no defect sing; `defect\.py list` names them"):
        tool.main(["check", "sing"])
    (tmp_path / "product.txt").write_text("2 + + 3")
    with pytest.raises(SystemExit, match=r"sign: `old` must occur once in product\.txt, and occurs 2 times"):
        tool.main(["check", "sign"])


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        ("tfdist/ops/graph/order.py", "tfdist/ops/graph/order.py"),
        ("callbacks/fit/drift.py", "tfdist/callbacks/fit/drift.py"),
        ("data_service/store/cache.py", "tfdist/data_service/store/cache.py"),
        ("docker/launcher.sh", ""),
    ],
)
def test_where_a_file_is_installed(file: str, installed: str) -> None:
    assert tool.Defect("n", "ops", file, "a", "b", "t").installed == installed


def test_a_broken_package_is_a_copy() -> None:
    each = next(each for each in DEFECTS if each.name == "slots-of-host")
    script = "from tfdist.launch.host import host; print(host.used((host.Host('a', 4),), 2), host.__file__)"
    tool.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tool.SCRATCH) as folder:
        tool._break_package(each, Path(folder))
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert "slots=4" in done.stdout
        assert folder in done.stdout
    assert each.old in Path(sysconfig.get_path("platlib"), each.installed).read_text()
