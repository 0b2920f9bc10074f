"""Processes beside the ranks, and ranks that end in unusual ways."""

from __future__ import annotations

import re
from typing import Any

import pytest

# Of all but the start of TensorFlow; without it a job would wait for TFDIST_STALL_CHECK_SHUTDOWN_TIME.
STALL = {"TFDIST_STALL_CHECK_SHUTDOWN_TIME": "60", "TF_CPP_MIN_LOG_LEVEL": "3"}
TRAIN = """
import tfdist, tensorflow as tf
tfdist.init()
def total(value): return float(tfdist.allreduce(tf.constant(float(value)), op=tfdist.Sum))
assert total(rank + 1) == sum(range(1, tfdist.size() + 1))
"""


@pytest.mark.parametrize(("ranks", "shared"), [pytest.param(2, 1 << 20, marks=pytest.mark.slice("launch")), (3, 0)])
def test_rank_that_ends_without_a_word_is_noticed(launch: Any, starter: str, ranks: int, shared: int) -> None:
    """By the window that the ranks of a host share, or from the launcher; without MPI by its connection."""
    launch.script(
        TRAIN + "if rank == 1: os._exit(0)\nbegin = time.monotonic()\n"
        "try: total(1)\nexcept tfdist.errors.PeerLostError as error:\n"
        "    print(f'after {time.monotonic() - begin:.1f} s:', error, flush=True)\n    raise"
    )
    done = launch.run("-np", str(ranks), "python", "rank.py", variables=STALL | {"TFDIST_SHARED_MEMORY": str(shared)})
    assert done.code == 1
    noticed = [line for line in done.stdout.splitlines() if " s: rank" in line and "rank 1 (host " in line]
    assert len(noticed) == ranks - 1, done.stdout + done.stderr
    assert all(re.search(r"after [0-2]\.\d s:", line) for line in noticed), noticed
    assert ("whose process has ended" if starter == "mpi" else "connection to") in noticed[0] + noticed[-1]
    assert "exited with status 0 without tfdist.shutdown(), as os._exit(0) does" in done.stderr


def test_ends_without_a_word_that_nobody_waits_for_are_good(launch: Any) -> None:
    launch.script(TRAIN + "if rank: os._exit(0)\ntime.sleep(1.5)\nprint('saved', flush=True)\nos._exit(0)")
    done = launch.run("-np", "2", "python", "rank.py", variables=STALL)
    assert (done.code, "saved" in done.stdout) == (0, True), done.stderr


FORKS = """
import multiprocessing
if rank and "OMPI_COMM_WORLD_RANK" in os.environ: from mpi4py import MPI  # which then starts and ends MPI
import tfdist, tensorflow as tf
tfdist.init(process_sets="dynamic")
from tfdist.errors import ConfigError
def total(value): return float(tfdist.allreduce(tf.constant(float(value)), op=tfdist.Sum))
assert total(rank) == 1

def refused(*calls):
    for call in calls:
        try: call()
        except ConfigError as error: assert f"forked from rank {rank}" in str(error), error
        else: raise AssertionError(call)

def ask():
    assert (tfdist.rank(), tfdist.size(), tfdist.is_initialized()) == (rank, 2, True)
    tfdist.init()
    refused(
        lambda: total(1000),
        tfdist.barrier,
        tfdist.join,
        lambda: tfdist.broadcast_object(rank),
        tf.function(lambda: tfdist.allreduce(tf.constant(1.0)), autograph=False),
        lambda: tfdist.add_process_set([0]),
        lambda: tfdist.start_timeline("child.json"),
    )
    tfdist.shutdown()

CHILDREN = {
    "exit": lambda: sys.exit(0),
    "exit with a status": lambda: sys.exit(5),
    "end": lambda: None,
    "error": lambda: 1 / 0,
    "questions": ask,
}
for name, child in CHILDREN.items():
    pid = os.fork()
    if pid == 0:
        import faulthandler
        faulthandler.dump_traceback_later(30, exit=True)
        child()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == {"exit with a status": 5, "error": 1}.get(name, 0), (name, status)
    assert total(rank) == 1

process = multiprocessing.get_context("fork").Process(target=ask)
process.start()
process.join(30)
assert process.exitcode == 0
stubborn = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
stubborn.start()
stubborn.terminate()
stubborn.join(30)
assert stubborn.exitcode == -signal.SIGTERM
assert total(rank) == 1
print("well", flush=True)
"""


def test_forked_process_is_no_rank(launch: Any) -> None:
    launch.script(FORKS)
    done = launch.run("-np", "2", "python", "rank.py", variables=STALL)
    assert done.code == 0, done.stderr
    assert done.stdout.count("well") == 2
    assert done.stderr.count("ZeroDivisionError") == 2, "of the children"


STARTS = """
import multiprocessing, subprocess, tfdist
tfdist.init()
if sys.argv[1:]:
    assert (tfdist.rank(), tfdist.size()) == (0, 1)
    assert float(tfdist.allreduce(7.0)) == 7
    sys.exit(3)
def work(value):
    return value, tfdist.size()
# A spawned process runs all of this from its beginning, as scripts without `if __name__ == "__main__"` have it.
if __name__ == "__main__":
    size = tfdist.size()
    assert size == 2 and rank == tfdist.rank()
    if rank == 0:
        assert subprocess.run(["sh", "-c", f"{sys.executable} {__file__} child; exit $?"]).returncode == 3
    else:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(work, (4,)) == (4, 1)
    assert float(tfdist.allreduce(1.0, op=tfdist.Sum)) == 2
    if rank == 0:
        words = "import tfdist; tfdist.init(); assert tfdist.size() == 2; print('inner', tfdist.rank())"
        starter = "--no-mpi" if tfdist.gloo_enabled() else "--mpi"
        command = ["tfdistrun", starter, "-np", "2", sys.executable, "-c", words]
        inner = subprocess.run(command, capture_output=True, text=True)
        assert inner.returncode == 0 and inner.stdout.count("inner") == 2, inner
    tfdist.barrier()
    print("well", flush=True)
"""


def test_process_that_a_rank_starts_is_a_world_of_one(launch: Any) -> None:
    """The rank itself is started by a wrapper, which is none."""
    launch.script(STARTS)
    launch.script("import subprocess\nsys.exit(subprocess.call([sys.executable, 'rank.py']))", "wrapper.py")
    variables = STALL | {"TFDIST_METRICS_PORT": "0", "TFDIST_TIMELINE": "run.json"}
    done = launch.run("-np", "2", "python", "wrapper.py", variables=variables)
    assert done.code == 0, done.stderr
    assert done.stdout.count("well") == 2
    for rank in range(2):
        assert done.stderr.count(f"was started by rank {rank} of a job after tfdist.init()") == 1, done.stderr
    assert sorted(path.name for path in launch.files("run*")) == ["run.0.json", "run.1.json"]


@pytest.mark.slice("launch")
@pytest.mark.parametrize(
    "command",
    [
        ["python", "rank.py"],  # replaces itself
        ["sh", "-c", "python rank.py once && python rank.py"],
    ],
    ids=["exec", "one after the other"],
)
def test_second_program_in_the_place_of_a_rank_is_refused(launch: Any, command: list[str]) -> None:
    launch.script(
        "import tfdist\ntfdist.init()\nprint('started', flush=True)\n"
        "if 'once' not in sys.argv: os.execv(sys.executable, [sys.executable, __file__])"
    )
    done = launch.run("-np", "2", *command, variables=STALL)
    assert done.code == 1
    assert done.stdout.count("started") == 2
    assert "a job can start only once per rank" in done.stderr


ENDS = {
    # How rank 1 ends, maybe while the other works on, and the status of the job.
    "caught": (
        "import threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()\n"
        "try: sys.exit(4)\nexcept SystemExit: pass\nassert total(1) == 2",
        0,
    ),
    "by hand": ("if rank == 1: raise SystemExit(6)\ntime.sleep(1000)", 6),
    "by hand, well": ("assert total(1) == 2\nraise SystemExit(0)", 0),
    "too early": ("if rank == 1: raise SystemExit\ntotal(1)", 1),
}


@pytest.mark.slice("launch")
@pytest.mark.parametrize(("how", "before"), [*((how, "") for how in ENDS), ("caught", "from mpi4py import MPI\n")])
def test_status_is_that_of_the_end(launch: Any, how: str, before: str) -> None:
    body, status = ENDS[how]
    launch.script(before + TRAIN + body)
    done = launch.run("-np", "2", "python", "rank.py", variables=STALL)
    assert done.code == status, done.stderr
    assert done.seconds < 60
