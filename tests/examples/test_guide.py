"""The README and the guides hold: their files run as they stand, and so do their commands, one after the other.

Of each page with blocks of bash or Python this file says which test runs it.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tfdist.launch.option import option

pytestmark = pytest.mark.slice("docs")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = "../README.md"
PAGES = ("install.md", "first-run.md", "scale-up.md", "inference.md", "custom-training.md", "drift.md", "processes.md")
PAGES += ("migrating-from-horovod.md", "notebooks.md", "debugger.md", "platforms.md", "scaling.md", README)
# Their commands run on the script of the README, and their blocks of Python without a name in the place of its `fit`.
OF_COMMANDS = ("gpu.md", "metrics.md", "timeline.md")
# Their commands are only parsed, by tests/unit/test_documentation.py: measurements of minutes, and other programs.
PARSED = ("containers.md", "contributing.md", "performance.md")
# The test that reads a page whose jobs need servers, a cluster, a rank that hangs, or a look at what they print.
BY_OTHERS = {
    "autotuning.md": "launch/test_autotune.py",
    "clusters.md": "unit/launch/host/cluster/test_documentation.py",
    "data-service.md": "data_service/test_documentation.py",
    "data-service-operation.md": "data_service/test_documentation.py",
    "debug-a-hang.md": "launch/test_stall.py",
    "elastic.md": "elastic/test_documentation.py",
    "hyperparameter-search.md": "ray/test_search.py",
    "messages.md": "ranks/callbacks/test_fit_agreement.py",
    "ray.md": "ray/test_page.py",
    "spark.md": "spark/test_page.py",
    "start-anywhere.md": "launch/test_start_anywhere.py",
    "storage.md": "storage/test_page.py",
    "torch.md": "torch/test_page.py",
    "trackers.md": "examples/test_tracker.py",
}
# Commands of several pages, which one page runs.
OF_INSTALL = ("python3 -m venv .venv", "tfdist doctor")
SECONDS = 300
FENCED = re.compile(r"^ *```(\w*)\n *(.*?)^ *```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^ *```(python|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]+))?\)")
ASSIGNED = re.compile(r"\w+=")
# Programs that are not installed here, or that need another process or machine, with what each must be given.
ELSEWHERE = {
    "conda": "training",
    "curl": "-s http://127.0.0.1:9401/metrics",
    "docker": "compose -f compose/|run --gpus all ",
    "export": "TFDIST_MPI_HOME=/opt/openmpi",
    "gdb": "-p",
    "py-spy": "--pid",
}
# Commands for an editor, another terminal or a free port, each with a test: see below, and tests/launch.
WITH_ANOTHER = ("DEBUG_TERMINAL=/dev/pts/3", "by_editor.py", "TFDIST_METRICS_PORT=9400")
# Of the measurements of a page: the same in seconds.
SHORTER = {
    "ResNet50 --image-size 96": "digits --image-size 8",
    "4KB,64MB": "4KB,1MB --seconds 1",
}


def write_files(page: str, folder: Path) -> list[str]:
    """The page's files, whose first line is their name, below `folder`; its commands."""
    commands: list[str] = []
    for language, block in BLOCK.findall((DOCS / page).read_text()):
        if language == "bash":
            commands += [line.strip() for line in block.replace("\\\n", " ").splitlines()]
            continue
        named = re.match(r"# (\w+\.py)\n", block)
        assert named or page in OF_COMMANDS, f"{page}: a block of Python without a name"
        if named:
            (folder / named[1]).write_text(block)
        else:
            (folder / f"part_{len(commands)}.py").write_text(two_lines().partition("model.fit(")[0] + block)
            commands.append(f"tfdistrun -np 2 python part_{len(commands)}.py")
    if page in (README, *OF_COMMANDS):
        (folder / "train.py").write_text(two_lines())
    return [] if page in PARSED else commands


def two_lines() -> str:
    """The script of the README with its two lines; the README leaves out where data and model come from."""
    diff = re.search(r"^```diff\n(.*?)^```", (DOCS / README).read_text(), re.MULTILINE | re.DOTALL)
    assert diff
    lines = [line for line in diff[1].splitlines() if not line.startswith("-")]
    code = "\n".join(line[1:] for line in lines)
    model = "model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])\n"
    data = "x, y = keras.random.normal((512, 16), seed=1), keras.random.normal((512, 1), seed=2)\n"
    return code.replace("dataset =", f"{data}{model}dataset =", 1)


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
    if words[0] in ELSEWHERE:
        assert re.search(ELSEWHERE[words[0]], command)
        return True
    if words[0] == "tfdistrun" and {"-H", "--hostfile", "--rendezvous", "4"} & set(words):
        known, program = option.parse(words[1:])
        assert program[-2:] == ["python", "train.py"]
        assert known.hosts or known.hostfile or known.rendezvous or "GPU" in command or "nsys" in program
        return True
    return any(part in command for part in WITH_ANOTHER)


def to_run(page: str, commands: list[str]) -> Iterator[str]:
    """Those of the page's commands that run here, each behind the folders and variables that those before it set."""
    before = ""
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[:1] == ["cd"] or (words and all(map(ASSIGNED.match, words))):
            before += f"{command}\n"
            continue
        words = words[next((index for index, word in enumerate(words) if not ASSIGNED.match(word)), len(words)) :]
        is_repeated = " ".join(words) in OF_INSTALL and page != "install.md"
        if words and not is_repeated and not check_here(command, words):
            yield before + shortened(command)


def shortened(command: str) -> str:
    """The command, with less to measure."""
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    return command


@pytest.mark.parametrize("page", [*PAGES, *OF_COMMANDS, "performance.md"])
def test_a_page_does_what_it_says(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "matplotlib" in (DOCS / page).read_text():
        request.getfixturevalue("all_packages")
    commands = write_files(page, tmp_path)
    for name in re.findall(r"\bcd (\w+/\w+)", "\n".join(commands)):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert commands or [*tmp_path.glob("*.py")]
    printed: set[str] = set()
    for command in to_run(page, commands):
        done = run(command, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        printed.update((done.stdout + done.stderr).splitlines())
    assert shown(page) <= printed
    for file in tmp_path.glob("*.py"):
        if not any(file.name in command for command in commands):
            subprocess.run([sys.executable, file], check=True, cwd=tmp_path, timeout=SECONDS)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it as a shell does, with this environment's programs first."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_pdb_in_another_terminal(tmp_path: Path) -> None:
    """docs/debugger.md, with a pseudo-terminal as the other one: its prompt is of the rank that was named."""
    (command,) = [line for line in write_files("debugger.md", tmp_path) if "DEBUG_TERMINAL" in line]
    ours, theirs = pty.openpty()
    ends: list[subprocess.CompletedProcess[str]] = []
    job = threading.Thread(target=lambda: ends.append(run(command.replace("/dev/pts/3", os.ttyname(theirs)), tmp_path)))
    job.start()
    shown = b""
    while b"(Pdb)" not in shown and select.select([ours], [], [], SECONDS)[0]:
        shown += os.read(ours, 4096)
    os.write(ours, b"p 'rank', tfdist.rank()\ncontinue\n")
    job.join(SECONDS)
    while select.select([ours], [], [], 0)[0]:
        shown += os.read(ours, 4096)
    os.close(ours)
    os.close(theirs)
    assert ends and ends[0].returncode == 0, shown
    assert b"('rank', 1)" in shown
    assert "[0] the sum is 1.0" in ends[0].stdout.splitlines()


def test_first_run_halves_the_steps_and_saves_both_models(tmp_path: Path) -> None:
    """What the page says of its own output."""
    write_files("first-run.md", tmp_path)
    steps = []
    for command in ("python alone.py", "tfdistrun -np 2 python together.py"):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        steps.append(set(re.findall(r"(\d+)/\1 - ", done.stdout)))
    assert steps == [{"128"}, {"64"}]
    assert (tmp_path / "alone.keras").is_file() and (tmp_path / "together.keras").is_file()


def headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", [*sorted(path.name for path in DOCS.glob("*.md")), README, "../CONTRIBUTING.md", "../SECURITY.md"]
)
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


@pytest.mark.parametrize("page", [README, *sorted(path.name for path in DOCS.glob("*.md"))])
def test_every_page_with_commands_has_its_test(page: str) -> None:
    """A new page with a block of bash or Python goes into one of the lists above."""
    text = (DOCS / page).read_text()
    lists = (PAGES, OF_COMMANDS, PARSED, BY_OTHERS)
    assert [page in names for names in lists].count(True) == bool(BLOCK.search(text)), f"{page}: in which list?"
    unmarked = [
        block for kind, block in FENCED.findall(text) if not kind and block.startswith(("tfdist", "python", "pip"))
    ]
    assert not unmarked, f"{page}: commands are in blocks of bash"
    if page in BY_OTHERS:
        assert page.split(".")[0] in (ROOT / "tests" / BY_OTHERS[page]).read_text()
