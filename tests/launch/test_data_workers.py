"""A job with a data service beside it: the ranks find it, and it ends with the job however that ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

UP = "open(f'up{rank}', 'w').write(os.environ['TFDIST_DATA_SERVICE'])\n"
STAY = "while True: time.sleep(0.05)\n"
READ = """
from tfdist.data_service.inspection.survey import survey
found = survey(os.environ['TFDIST_DATA_SERVICE'], 10)
print('workers', len(found.workers), *sorted({worker.state for worker in found.workers}))
"""


def test_ranks_find_it_and_nothing_is_left(launch: Any, monkeypatch: Any, tmp_path_factory: Any) -> None:
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(temporary))
    launch.script(UP + READ)
    done = launch.run("-np", "2", "--data-workers", "2", "--autoscale", "2:3", "python", "rank.py")
    assert done.code == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "workers" in line) == [
        "[0] workers 2 ready",
        "[1] workers 2 ready",
    ]
    assert len({path.read_text() for path in launch.files("up*")}) == 1
    assert "[data-worker-1] ready at 127.0.0.1:" in done.stderr
    assert list(temporary.iterdir()) == []
    assert launch.processes() == {}


@pytest.mark.slice("launch")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_launcher(launch: Any, wait_until: Any, signum: int) -> None:
    launch.script(UP + STAY)
    job = launch.start("-np", "1", "--data-workers", "1", "python", "rank.py")
    wait_until(lambda: launch.files("up*"), seconds=60, what="the rank")
    nodes = {pid: command for pid, command in launch.processes().items() if "process.node" in command}
    assert sorted(command.split()[-1] for command in nodes.values()) == ["dispatcher", "worker"]
    names = sorted(Path(f"/proc/{pid}/comm").read_text() for pid in nodes)
    assert names == ["tfdist-dispatch\n", "tfdist-worker\n"]
    os.kill(job.pid, signum)
    wait_until(lambda: not launch.processes(), seconds=10, what="the end of all processes")
    assert launch.end(job).code == (143 if signum == signal.SIGTERM else -9)


def test_it_can_be_interrupted_before_it_is_ready(launch: Any, wait_until: Any) -> None:
    launch.script(UP)
    job = launch.start("-np", "1", "--data-workers", "1", "python", "rank.py")
    wait_until(lambda: any("process.node" in command for command in launch.processes().values()), what="a server")
    job.send_signal(signal.SIGINT)
    done = launch.end(job)
    assert done.code == 130 and done.seconds < 8
    assert "before the data service was ready" in done.stderr
    assert launch.files("up*") == []
    assert launch.processes() == {}


def test_ranks_elsewhere_are_refused(launch: Any) -> None:
    launch.script(UP)
    done = launch.run("-np", "2", "-H", "localhost:1,192.0.2.1:1", "--data-workers", "1", "python", "rank.py")
    assert done.code == 2
    assert "TFDIST_DATA_SERVICE=HOST:PORT" in done.stderr


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_a_bad_number_is_refused(launch: Any, count: str) -> None:
    done = launch.run("-np", "1", "--data-workers", count, "python", "-V")
    assert done.code == 2 and "is not a number of workers" in done.stderr
