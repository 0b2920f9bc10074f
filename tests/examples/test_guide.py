"""The guides under docs/ hold: their files run as they stand, and so do their commands, one after the other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tfdist.launch.option import option

pytestmark = pytest.mark.slice("docs")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("install.md", "first-run.md", "scale-up.md", "inference.md", "custom-training.md", "drift.md", "processes.md")
PAGES += ("migrating-from-horovod.md",)
SECONDS = 300
BLOCK = re.compile(r"^ *```(python|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]+))?\)")


def write_files(page: str, folder: Path) -> list[str]:
    """The page's files, whose first line is their name, below `folder`; its commands."""
    commands: list[str] = []
    for language, block in BLOCK.findall((DOCS / page).read_text()):
        if language == "bash":
            commands += [line.strip() for line in block.splitlines()]
            continue
        named = re.match(r"# (\w+\.py)\n", block)
        assert named, f"{page}: a block of Python without a name"
        (folder / named[1]).write_text(block)
    return commands


def shown(page: str) -> set[str]:
    """What the page shows of the output of its ranks."""
    return set(re.findall(r"^ *(\[\d\] .+)$", (DOCS / page).read_text(), re.MULTILINE))


def check_here(command: str, words: list[str]) -> bool:
    """Whether a command is for .ci/run, or needs other hosts; then it is checked as far as it can be here."""
    if words[0] == "pip":
        offered = metadata.metadata("tfdist").get_all("Provides-Extra") or []
        assert all(extra in offered for extra in re.findall(r"\[(\w+)\]", command)), command
        return True
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
        return True
    if words[0] == "source":
        assert words[1:] == [".venv/bin/activate"]
        return True
    if words[0] == "tfdistrun" and {"-H", "--hostfile"} & set(words):
        known, program = option.parse(words[1:])
        assert program == ["python", "train.py"] and (known.hosts or known.hostfile)
        return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    commands = write_files(page, tmp_path)
    assert commands
    printed: set[str] = set()
    for command in commands:
        words = shlex.split(command)
        if check_here(command, words):
            continue
        words[:] = [sys.executable if word == "python" else word for word in words]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        printed.update((done.stdout + done.stderr).splitlines())
    assert shown(page) <= printed
    for file in tmp_path.glob("*.py"):
        if not any(file.name in command for command in commands):
            subprocess.run([sys.executable, file], check=True, cwd=tmp_path, timeout=SECONDS)


def test_first_run_halves_the_steps_and_saves_both_models(tmp_path: Path) -> None:
    """What the page says of its own output."""
    write_files("first-run.md", tmp_path)
    steps = []
    for words in ([sys.executable, "alone.py"], ["tfdistrun", "-np", "2", sys.executable, "together.py"]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=True)
        steps.append(set(re.findall(r"(\d+)/\1 - ", done.stdout)))
    assert steps == [{"128"}, {"64"}]
    assert (tmp_path / "alone.keras").is_file() and (tmp_path / "together.keras").is_file()


def headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*sorted(path.name for path in DOCS.glob("*.md")), "../README.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = DOCS / page
    for target, section in LINK.findall(path.read_text()):
        linked = path.parent / target
        assert linked.exists(), f"{page}: {target}"
        assert not section or section in headings(linked), f"{page}: {target}#{section}"


def test_every_page_has_its_question() -> None:
    index = (DOCS / "README.md").read_text()
    missing = [path.name for path in DOCS.glob("*.md") if path.name != "README.md" and f"({path.name}" not in index]
    assert not missing
