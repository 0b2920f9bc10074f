"""The example stays true: its images are prepared in the trainer, by workers beside it, by those of a job, and by a
cluster that commands in other processes have started.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist import data_service

pytestmark = [pytest.mark.usefixtures("all_packages"), pytest.mark.slice("examples")]

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "data_service.py"
LINES_AT_MOST = 110
SECONDS = 300
RUNS = {
    "in the trainer": ((), ()),
    "by a cluster": ((), ("--data-service", "2")),
    "by the workers of the job": (("tfdistrun", "-np", "2", "--data-workers", "1"), ("--data-service", "job")),
}


def train(folder, launcher, *options):
    """Accuracy and the share of the last epoch that was waited for, in percent, as the script tells them."""
    command = [*launcher, sys.executable, str(SCRIPT), "--epochs", "2", "--images", "400", *options]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = re.findall(r"accuracy: ([\d.]+)\n.*waited for data: (\d+)% of the last epoch\n", done.stdout)
    assert len(told) == 1, done.stdout
    return float(told[0][0]), int(told[0][1])


@pytest.mark.parametrize("run", RUNS)
def test_learns_and_tells_how_long_it_waited(run, tmp_path):
    launcher, options = RUNS[run]
    if launcher:
        launcher = (str(Path(sys.executable).parent / "tfdistrun"), *launcher[1:])
    accuracy, waited = train(tmp_path, launcher, *options)
    assert accuracy > 0.25  # of ten classes
    assert 0 <= waited <= 100


@pytest.fixture
def start(tmp_path, wait_until):
    """Starts a server by its command, waits until it is ready, and gives its process and address."""
    made = []

    def begin(part, *words):
        log = tmp_path / f"{part}-{len(made)}.log"
        command = [sys.executable, "-m", "tfdist.command", "data-service", part, "--port", "0", *words]
        with log.open("w") as file:
            made.append(subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file))
        wait_until(lambda: "ready at" in log.read_text(), 90, f"the {part}")
        return made[-1], re.search(r"ready at (\S+)", log.read_text())[1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


def runs(pid):
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_learns_from_a_cluster_of_commands_that_ends(start, tmp_path, wait_until):
    dispatcher, service = start("dispatcher")
    workers = [start("worker", "--dispatcher", service)[0] for _ in range(2)]
    accuracy, _ = train(tmp_path, (), "--data-service", service)
    assert accuracy > 0.25
    found = data_service.survey(service)
    assert [worker.state for worker in found.workers] == ["ready"] * 2
    assert min(worker.status.counters["elements_total"] for worker in found.workers) > 0
    for process in (*workers, dispatcher):
        process.send_signal(signal.SIGTERM)
    assert dispatcher.wait(60) == 0
    wait_until(lambda: all("drain" in log.read_text() for log in tmp_path.glob("worker-*.log")), 30, "the drains")
    for process in workers:  # endless data never runs out, and nobody reads it any more: once more ends them at once
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    servers = [server.status.pid for server in (found.dispatcher, *found.workers)]
    wait_until(lambda: not any(map(runs, servers)), 10, "the end of the servers")


def test_it_is_short():
    assert len(SCRIPT.read_text().splitlines()) <= LINES_AT_MOST
