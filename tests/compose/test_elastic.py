"""compose/elastic.yaml: one training whose workers are killed, added, paused, cut off and stopped while it runs."""

import re
import shutil
from pathlib import Path

import pytest
from container_fault import Fault

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
HOST_TIMEOUT_S = 6
# From a fault to ranks that train again: the silence that is borne, and new processes on a slow machine.
BOUND_S = HOST_TIMEOUT_S + 90
# The model and the data of the example, until it is told that it is enough.
TRAINS = """
import os, digits, keras, tfdist

class UntilEnough(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if tfdist.rank() == 0:
            print(f"an epoch ends with {tfdist.size()} ranks", flush=True)
        told = tfdist.allgather_object(os.path.exists("/checkpoints/enough"))
        self.model.stop_training = any(told) and epoch >= 12

train, validation = digits.load_data(32)
callbacks = [tfdist.callbacks.DataParallel(elastic=True), UntilEnough()]
model = digits.build_model()
model.fit(tfdist.shard(train), epochs=1000, callbacks=callbacks, verbose=0)
accuracy = model.evaluate(validation, verbose=0)[1]
if tfdist.rank() == 0:
    print(f"epochs: {model.history.epoch}")
    print(f"validation accuracy: {accuracy:.4f}", flush=True)
"""


class Output:
    """What a job says, read from where the last search has ended."""

    def __init__(self, path, wait_until):
        self.path, self.wait_until, self.place = path, wait_until, 0

    def until(self, pattern):
        """Waits for a line with it behind the last one that was found; returns what was said up to it."""

        def found():
            # Only whole lines, so that nothing of one is left for the next search.
            match = re.search(rf"^.*{pattern}.*\n", self.text(), re.MULTILINE)
            ends.extend([match.end()] if match else [])
            return match

        ends = []
        self.wait_until(found, seconds=BOUND_S, what=f"{pattern!r} behind\n{self.text()[-3000:]}")
        said = self.text()[: ends[0]]
        self.place += ends[0]
        return said

    def text(self):
        return self.path.read_text()[self.place :]


@pytest.fixture
def training(project, code, docker, wait_until, tmp_path):
    folder = code(TRAINS)
    shutil.copy(EXAMPLE, folder)
    job = project(
        "elastic.yaml",
        CODE=folder,
        ELASTIC_COMMAND="python train.py",
        TFDIST_HOST_TIMEOUT=str(HOST_TIMEOUT_S),
        LAUNCH_OPTIONS="--blacklist-cooldown-range 5 10",
    )
    log = tmp_path / "log"
    with job.started(log, "launcher", verb=("run", "--rm", "-T")) as process:
        yield job, process, Fault(docker, job, wait_until), Output(log, wait_until)
    # Else a test that fails leaves a container that cannot be stopped.
    docker("unpause", f"{job.name}-worker-3", check=False)


def scripts(faults, name):
    """The processes of the ranks in a container, without the agent and the supervisors that it has forked."""
    return {process for process, program in faults.ranks(name).items() if program.startswith("python")}


def test_a_training_goes_on_whatever_becomes_of_its_workers(training, docker, wait_until):
    job, process, faults, said = training
    one, two, three = (f"{job.name}-worker-{number}" for number in (1, 2, 3))
    said.until("an epoch ends with 2 ranks")

    # One is killed: the other goes on.
    faults.kill("worker-2")
    said.until(rf"rank 1 \({two}\) was lost: it .*; 1 rank continues")
    said.until("an epoch ends with 1 ranks")

    # It comes back, with one that was not there before, and they join; the one that trains stays as it is.
    before = docker("inspect", "--format", "{{.State.Pid}}", one).stdout
    job("up", "--detach", "--no-build", "--scale", "worker=3", "worker", check=True)
    assert docker("inspect", "--format", "{{.State.Pid}}", one).stdout == before
    said.until(f"an agent has come from {three} ")
    said.until("an epoch ends with 3 ranks")

    # Two are silent for too long. When they can be heard again, the ranks there end, and they are used again: the agent
    # of the one that was cut off has ended, too, and a new one comes.
    stale = {name: scripts(faults, name) for name in ("worker-1", "worker-3")}
    faults.pause("worker-3")
    faults.disconnect("worker-1")
    said.until("an epoch ends with 1 ranks")
    faults.unpause("worker-3")
    faults.connect("worker-1")
    for name, ranks in stale.items():
        wait_until(
            lambda name=name, ranks=ranks: not ranks & scripts(faults, name), seconds=BOUND_S, what=f"no {ranks}"
        )
    said.until("an epoch ends with 3 ranks")

    # One is stopped in order: its rank is told, and it is no lost host.
    faults.stop("worker-3")
    assert "was lost" not in said.until("an epoch ends with 2 ranks")

    job("exec", "-T", "--index", "1", "worker", "touch", "/checkpoints/enough", check=True)
    said.until(r"epochs: ")
    said.until(r"validation accuracy: (1|0\.9[5-9])")
    assert process.wait(BOUND_S) == 0
    for name in ("worker-1", "worker-2"):
        wait_until(lambda name=name: not faults.ranks(name), seconds=BOUND_S, what=f"no rank on {name}")
