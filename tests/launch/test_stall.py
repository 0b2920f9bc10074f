"""Jobs in which a rank does not come: one report for all, word for word, and stacks by the command that it names."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "debug-a-hang.md"
ADVICE = (
    " Check that those processes are still running and what they are doing, and that no rank skips a collective, for "
    "example because it has fewer steps or a branch that depends on its rank."
)
FAILS = f"It fails after N s (TFDIST_STALL_CHECK_SHUTDOWN_TIME).{ADVICE}"
FAILED = f"It has failed after N s (TFDIST_STALL_CHECK_SHUTDOWN_TIME; raise it if those ranks are only slow).{ADVICE}"
OVER = (
    "tfdist: the stall is over: rank 1 (host HOST) reached allreduce 'grads' (1 tensor, 'grads') after N s; the job "
    "continues.\n"
)
STACKS = "Its Python stacks: kill -USR1 PID on host HOST"


def words(output: str) -> str:
    """Without what differs from run to run: the prefix of each rank's lines, seconds, process ids, the host."""
    text = re.sub(r"(?m)^\[\d+\] ?", "", output)
    text = re.sub(r"\b\d+(\.\d)? s\b", "N s", text)
    text = re.sub(r"USR1 \d+", "USR1 PID", text)
    return re.sub(r"host [\w.-]+", "host HOST", text)


def reports(output: str) -> list[str]:
    """Each of three or more lines."""
    return re.findall(r"tfdist: stalled: (.*?branch that depends on its rank\.)", words(output), re.DOTALL)


def reports_of(output: str, collective: str) -> list[str]:
    """Those about one collective: a busy machine can start a rank so late that there is one about the first, too."""
    return [text for text in reports(output) if f"in {collective} for" in text.partition("\n")[0]]


def report(title: str, missing: str, did: list[str], call: int, end: str = FAILS) -> str:
    told = "".join(f"  {line}. {STACKS}\n" for line in did)
    return f"rank 0 (host HOST) has waited N s in {title} for {missing} (host HOST).\n{told}This is call {call}. {end}"


GRADS = "allreduce 'grads' (1 tensor, 'grads')"
SLEEPS = """
import tfdist
tfdist.init()
tfdist.allreduce(float(rank), name="loss")
if rank == 1:
    while not os.path.exists("go"): time.sleep(0.01)
tfdist.allreduce(float(rank), name="grads")
print("went on")
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slice("launch"))])
def test_a_rank_that_sleeps(launch: Any, wait_until: Callable[..., None], ranks: int) -> None:
    """And comes in the end: that is reported, too."""
    launch.script(SLEEPS)
    variables = {"TFDIST_STALL_CHECK_WARNING_TIME": "2"}
    job = launch.start("-np", str(ranks), sys.executable, "rank.py", variables=variables)
    wait_until(lambda: reports_of(launch.said(job), GRADS), seconds=55, what="the report")
    _, _, told = launch.said(job).partition(f"in {GRADS} for")
    (process,) = set(re.findall(r"kill -USR1 (\d+) on host", told))
    assert int(process) in launch.processes()
    assert "rank.py" in launch.processes()[int(process)]
    (launch.folder / "go").write_text("")
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert done.stdout.count("went on") == ranks
    assert words(done.stderr).count(OVER) == 1
    did = ["rank 1 finished allreduce 'loss' (call 1) N s ago"]
    assert reports_of(done.stderr, GRADS) == [report(GRADS, "rank 1", did, 2)]


@pytest.mark.slice("launch")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_sleeps_on_another_host(
    launch: Any, agent: Any, wait_until: Callable[..., None], ranks: int
) -> None:
    """What it does is not seen there; what it has sent tells as much."""
    launch.script(SLEEPS)
    hosts = ",".join(f"node{rank}:1" for rank in range(ranks))
    options = ("-np", str(ranks), "-H", hosts, "--stall-check-warning-time-seconds", "2")
    job = agent.start(launch, *options, "python", "rank.py")
    wait_until(lambda: reports_of(launch.said(job), GRADS), seconds=55, what="the report")
    assert re.search(r"for rank 1 \(host node1\)\.\n.*kill -USR1 \d+ on host node1\n", launch.said(job))
    (launch.folder / "go").write_text("")
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert words(done.stderr).count(OVER) == 1
    did = ["rank 1 was last seen in allreduce 'loss' (call 1) N s ago"]
    assert reports_of(done.stderr, GRADS) == [report(GRADS, "rank 1", did, 2)]


BRANCHES = """
last = int(os.environ["LAST"])
if rank == last: os.environ["TFDIST_STALL_CHECK_SHUTDOWN_TIME"] = "60"
import tfdist
pair = tfdist.ProcessSet([0, last])
tfdist.init(process_sets=[pair])
if rank == last:
    tfdist.barrier(process_set=pair, name="x")
tfdist.allreduce(float(rank), name="grads")
"""


@pytest.mark.slice("launch")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_took_another_branch(launch: Any, ranks: int) -> None:
    """The others give up first."""
    last = ranks - 1
    launch.script(BRANCHES)
    times = {"TFDIST_STALL_CHECK_WARNING_TIME": "2", "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "15"}
    done = launch.run("-np", str(ranks), sys.executable, "rank.py", variables={**times, "LAST": str(last)})
    assert done.code != 0
    pair = f"in process set 1 (ranks 0{'-' if last == 1 else ', '}{last})"
    did = [f"rank {last} is waiting in another collective: barrier 'x' {pair} (call 1), for N s"]
    assert reports_of(done.stderr, GRADS) == [report(GRADS, f"rank {last}", did, 3)]
    # By whoever gave up first, which has told the others where the ranks are without MPI.
    failed = report(GRADS, f"rank {last}", did, 3, FAILED)
    assert any(failed.replace("rank 0 ", f"rank {waiter} ", 1) in words(done.stderr) for waiter in range(last))
    assert "timed out waiting for the ranks that its error names" in done.stderr


FITS = """
import keras, numpy as np, tfdist
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")

class Sleep(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and rank == 1: time.sleep(3600)

data = tfdist.shard((np.ones((64, 2)), np.ones((64, 1))))
model.fit(*data, batch_size=4, verbose=0, callbacks=[tfdist.callbacks.DataParallel(), Sleep()])
"""


@pytest.mark.slice("launch")
def test_a_rank_that_waits_in_fit_is_not_the_one_to_mend(launch: Any) -> None:
    launch.script(FITS)
    times = {"TFDIST_STALL_CHECK_WARNING_TIME": "2", "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "15"}
    done = launch.run("-np", "2", sys.executable, "rank.py", variables=times)
    assert done.code == 1
    assert re.search(r"\nnext: rank 0 on \S+ timed out waiting for the ranks that its error names;", done.stderr), (
        done.stderr
    )


DIES = """
import signal, tfdist
tfdist.init()
tfdist.allreduce(float(rank), name="loss")
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
tfdist.allreduce(float(rank), name="grads")
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slice("launch"))])
def test_a_rank_that_died(launch: Any, ranks: int) -> None:
    """The others notice before anybody stalls, and the launcher says who was the first."""
    launch.script(DIES)
    variables = {"TFDIST_STALL_CHECK_WARNING_TIME": "30"}
    done = launch.run("-np", str(ranks), sys.executable, "rank.py", variables=variables)
    assert done.code == 137
    host = socket.gethostname()
    assert done.stdout.count("PeerLostError") + done.stderr.count("PeerLostError: rank") == ranks - 1
    outcomes = ["exit code 1"] * ranks
    outcomes[1] = "killed by SIGKILL"
    width = max(len(host), len("host"))
    rows = [f"  {rank:<4}  {host:<{width}}  {outcome}\n" for rank, outcome in enumerate(outcomes)]
    assert done.stderr[done.stderr.index("tfdistrun: rank") :] == (
        f"tfdistrun: rank 1 on {host} failed first: killed by SIGKILL\n"
        f"  rank  {'host':<{width}}  outcome\n{''.join(rows)}"
        f"next: rank 1 on {host}: often the kernel's out-of-memory killer: check dmesg on that host, or lower the "
        "batch size\n"
    )
    assert reports(done.stderr) == []


OWN_HANDLER = """
import signal, tfdist
signal.signal(signal.SIGUSR1, lambda *_: print("mine", flush=True))
tfdist.init()
if rank == 1:
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(3600)
tfdist.barrier(name="b")
"""


@pytest.mark.slice("launch")
def test_a_rank_with_a_handler_of_its_own(launch: Any) -> None:
    launch.script(OWN_HANDLER)
    times = {"TFDIST_STALL_CHECK_WARNING_TIME": "1", "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "15"}
    done = launch.run("-np", "2", sys.executable, "rank.py", variables=times)
    assert done.stdout.count("mine") == 1
    assert "tfdist rank 1: the script has its own handler for SIGUSR1" in done.stderr
    (text,) = reports(done.stderr)
    assert "\n  rank 1 has not called a collective yet. Its stacks: py-spy dump, on host HOST\n" in text


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slice("launch")
def test_the_page_on_hangs_is_true(launch: Any, wait_until: Callable[..., None]) -> None:
    (script,) = blocks("python")
    start, kill = (block.split() for block in blocks("bash"))
    shown, stack, over = blocks("text")
    assert over.startswith("tfdist: the stall is over: rank 1 ")
    (launch.folder / "hang.py").write_text(script)
    assert start[0] == "tfdistrun" and start[-2:] == ["python", "hang.py"]
    job = launch.start(*start[1:])
    wait_until(lambda: reports(launch.said(job)), seconds=55, what="the report")
    (process,) = set(re.findall(r"kill -USR1 (\d+) on host", launch.said(job)))
    assert kill[:2] == ["kill", "-USR1"]
    launch.end(launch.start("-USR1", process, program=["-c", KILL]))
    done = launch.end(job)
    assert reports(done.stderr) == reports(shown)
    assert stack.strip() in words(done.stderr).replace(str(launch.folder) + "/", "")
    errors = re.findall(r"StallError: (.*?branch that depends on its rank\.)", words(done.stderr), re.DOTALL)
    assert errors[0] == reports(shown)[0].replace(FAILS, FAILED)


# As the shell's `kill`.
KILL = "import os, signal, sys; os.kill(int(sys.argv[2]), signal.SIGUSR1)"


FETCHES = """
import tensorflow as tf
import tfdist.tensorflow as hvd
meet(2)
hvd.init()
graph = tf.Graph()
with graph.as_default():
    sums = [hvd.allreduce(tf.ones((2,)), op=hvd.Sum, name=name) for name in "ab"]
with tf.compat.v1.Session(graph=graph) as session:
    session.run(sums)
    try:
        session.run(sums[rank])
    except tf.errors.DeadlineExceededError as error:
        print("told", "no collective is waited for on all ranks: WHAT" in error.message)
"""
WHAT = (
    "rank 0 waits for 'a' (collective 1 of graph 1); rank 1 waits for 'b' (collective 2 of graph 1). Every rank must "
    "fetch the same collectives from its session."
)


def test_sessions_that_fetch_different_collectives(launch: Any) -> None:
    """A warning first, then an error on both."""
    launch.script(FETCHES.replace("WHAT", WHAT))
    variables = {"TFDIST_STALL_CHECK_WARNING_TIME": "1", "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "4"}
    done = launch.end(launch.start("-np", "2", sys.executable, "rank.py", variables=variables))
    assert done.code == 0, done.stderr
    assert done.stdout.count("told True") == 2
    assert words(done.stderr).count(f"tfdist: for N s no collective was waited for on all ranks: {WHAT}") == 1
