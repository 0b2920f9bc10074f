"""docs/start-anywhere.md: its commands as they stand, but for addresses and numbers; this machine plays all nodes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slice("docs")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start-anywhere.md"
ON_NODES, WITH_AGENTS, BY_OTHERS = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
KEY, ON_EACH = ON_NODES.splitlines()
SECONDS = 120
TRAIN = """\
import tfdist
tfdist.init()
print("rank", tfdist.rank(), "of", tfdist.size(), "sums", float(tfdist.allreduce(tfdist.rank() + 1.0, op=tfdist.Sum)))
"""
SHOWN = ["[0] rank 0 of 2 sums 3.0", "[1] rank 1 of 2 sums 3.0"]


def run(folder: Path, *lines: str) -> list[str]:
    """Starts all lines at the same time; what each has printed, when all have ended well."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    jobs = [
        subprocess.Popen(["bash", "-c", line], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        for line in lines
    ]
    try:
        said = [job.communicate(timeout=SECONDS)[0] for job in jobs]
    finally:
        for job in jobs:
            job.terminate()
    assert [job.returncode for job in jobs] == [0] * len(jobs), said
    return said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It has the script, and the key that the page's command makes."""
    (tmp_path / "train.py").write_text(TRAIN)
    run(tmp_path, KEY)
    assert (tmp_path / "tfdist.key").stat().st_mode & 0o777 == 0o600
    return tmp_path


def here(line: str, changes: dict[str, str]) -> str:
    """The line with two ranks, and this machine at a free port in the place of node1."""
    for old, new in changes.items():
        assert old in line
        line = line.replace(old, new)
    return line


def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_the_same_command_on_every_node(folder: Path) -> None:
    line = here(ON_EACH, {"-np 8": "-np 2", "node1:4000": address()})
    first, second = sorted(run(folder, line, line))
    assert first == ""
    assert sorted(second.splitlines()) == SHOWN


def test_workers_that_wait_for_a_launcher(folder: Path) -> None:
    of_worker, of_launcher = [line for line in WITH_AGENTS.splitlines() if not line.startswith("#")]
    at = {"node1:4000": address()}
    worker = here(of_worker, at | {"--slots 4": "--slots 1"})
    *_, shown = run(folder, worker, worker, here(of_launcher, at))
    assert sorted(shown.splitlines()) == SHOWN


def test_what_another_launcher_starts() -> None:
    """With its variables, tests/launch/test_foreign.py."""
    assert BY_OTHERS == "torchrun --nproc-per-node 4 train.py\n"
