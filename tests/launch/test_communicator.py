"""`init` with a communicator, lists of ranks and process sets, in real jobs; and ranks that die in a collective."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.starter("mpi")

# Four ranks that import Keras on two busy cores.
DEADLINE_S = 240.0
# From the death of a rank to the end of everything.
BOUND_S = 10.0


@dataclass
class Job:
    """One that has ended."""

    code: int
    stdout: str
    stderr: str

    def assert_passed(self, ranks: int) -> None:
        """Every rank has come to its last line."""
        assert self.code == 0, self.stdout + self.stderr
        assert self.stdout.count("came to the end") == ranks, self.stdout + self.stderr


def run(launch: Any, ranks: int, text: str, **variables: str) -> Job:
    launch.script(text)
    job = launch.start("-np", str(ranks), "python", "rank.py", variables={"TF_CPP_MIN_LOG_LEVEL": "3", **variables})
    out, err = job.communicate(timeout=DEADLINE_S)
    return Job(job.returncode, out, err)


GROUPS = {
    "Split": "MPI.COMM_WORLD.Split(rank % 2)",
    "lists": "list(range(rank % 2, MPI.COMM_WORLD.size, 2))",
}
# The two groups have other data, another model and another number of steps.
TRAIN = """
import keras, numpy as np, tensorflow as tf
from mpi4py import MPI
import tfdist
from tfdist.testing import assert_close, assert_identical_on_ranks

group = rank % 2
tfdist.init(comm={comm})
assert tfdist.size() == len(range(group, MPI.COMM_WORLD.size, 2))
generator = np.random.default_rng(group)
x = generator.normal(size=(48, 5)).astype("float32")
y = x @ generator.normal(size=(5, 1)).astype("float32")

def new_model(seed):
    keras.utils.set_random_seed(10 * group + seed)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
    return model

model = new_model(tfdist.rank())
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
callback = tfdist.callbacks.DataParallel(scale_learning_rate=False)
model.fit(tfdist.shard(data), epochs=2 + group, verbose=0, callbacks=[callback])
assert_identical_on_ranks(model.get_weights())
np.save(f"weights{{rank}}.npy", np.concatenate([weight.ravel() for weight in model.get_weights()]))

reference = new_model(0)
reference.fit(x, y, batch_size=4 * tfdist.size(), epochs=2 + group, shuffle=False, verbose=0)
assert_close(model.get_weights(), reference.get_weights())
MPI.COMM_WORLD.Barrier()
print("came to the end")
"""


@pytest.mark.slice("launch")
@pytest.mark.parametrize(("groups", "ranks"), [("Split", 4), ("lists", 3)])
def test_two_trainings_at_once(launch: Any, groups: str, ranks: int) -> None:
    """Equal bit by bit within a group, different between groups, each as one process would train it."""
    run(launch, ranks, TRAIN.format(comm=GROUPS[groups])).assert_passed(ranks)
    weights = [np.load(launch.folder / f"weights{rank}.npy") for rank in range(ranks)]
    for rank in range(2, ranks):
        assert weights[rank].tobytes() == weights[rank - 2].tobytes()
    assert np.abs(weights[0] - weights[1]).max() > 0.01


# Rank 2 comes first in the list that it shares with rank 0, so it is rank 0 there.
LISTS = """
import numpy as np, tfdist
from mpi4py import MPI
for wrong in ([1 - rank], [rank, rank], [rank, 99], [rank, -1], [], "no ranks", [0.5], 3, MPI.COMM_NULL):
    try:
        tfdist.init(comm=wrong)
    except tfdist.errors.ConfigError as error:
        print("refused", "MPI.COMM_NULL" if wrong == MPI.COMM_NULL else wrong, error)
        assert not tfdist.is_initialized()
    else:
        raise AssertionError(wrong)

together = [2, 0] if rank in (0, 2) else [1]
tfdist.init(comm=together)
assert tfdist.rank() == together.index(rank)
assert tfdist.size() == tfdist.local_size() == len(together)
assert (tfdist.local_rank(), tfdist.cross_rank(), tfdist.cross_size()) == (tfdist.rank(), 0, 1)
assert tfdist.allgather_object(rank) == together
assert tfdist.broadcast_object(rank, root_rank=0) == together[0]
assert float(tfdist.allreduce(float(rank), op=tfdist.Sum)) == sum(together)
assert tfdist.mpi_threads_supported()
try:
    tfdist.broadcast([1.0], 2)
except tfdist.errors.ConfigError as error:
    assert "received root 2" in str(error)
assert MPI.COMM_WORLD.allgather(rank) == [0, 1, 2]
print("came to the end")
"""


def test_lists_of_ranks(launch: Any) -> None:
    """Wrong ones are refused, with what was expected; then the order of the list is that of the ranks."""
    done = run(launch, 3, LISTS)
    done.assert_passed(3)
    for rank in range(3):
        text = f"init received the ranks [{rank}, {rank}] on rank {rank} of 3; expected distinct ranks of the job"
        assert f"[{rank}] refused [{rank}, {rank}] {text}, including this one" in done.stdout
    assert "refused MPI.COMM_NULL init received MPI_COMM_NULL; expected a communicator that" in done.stdout
    assert "refused [] init(comm=...) must be None, a list of one or more ranks of the job, or an mpi4py" in done.stdout
    assert "received [0.5]." in done.stdout
    assert "received 'no ranks'." in done.stdout


DISAGREE = """
import tfdist
tfdist.init(comm={lists}[rank])
"""


@pytest.mark.slice("launch")
@pytest.mark.parametrize("lists", [[[0, 1], [1, 0]], [[0, 1], [1]]], ids=["another order", "another length"])
def test_lists_that_disagree(launch: Any, lists: Sequence[Sequence[int]]) -> None:
    """Nothing can find that out before a rank has waited in vain; then it says what to look at."""
    done = run(launch, 2, DISAGREE.format(lists=lists), TFDIST_STALL_CHECK_SHUTDOWN_TIME="3")
    assert done.code == 1
    assert "StallError: rank 0 has waited 3 seconds in tfdist.init()" in done.stderr
    assert "With comm=[...], all ranks in the list must pass the same list" in done.stderr


SETS = """
import threading
import numpy as np, tensorflow as tf, tfdist
from mpi4py import MPI
pair, split = tfdist.ProcessSet([1, 0]), tfdist.ProcessSet(MPI.COMM_WORLD.Split(rank % 2))
try:
    split.ranks
except tfdist.errors.NotInitializedError as error:
    assert "known only after passing it to tfdist.init" in str(error)
tfdist.init(process_sets=[pair, split])

assert tfdist.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 1], 2: [0, 2], 3: [1]}
assert (pair.process_set_id, pair.ranks, pair.included()) == (1, [0, 1], rank < 2)
assert (split.process_set_id, split.ranks) == ((2, [0, 2]) if rank != 1 else (3, [1]))
assert split.included()
for number, ranks in list(tfdist.get_process_set_ids_and_ranks().items())[1:]:
    where = tfdist.process_sets.of_number(number)
    if where.included():
        total = tfdist.allreduce(float(rank + 1), op=tfdist.Sum, process_set=where)
        assert float(total) == sum(ranks) + len(ranks)
        assert tfdist.allgather_object(rank, process_set=where) == ranks
try:
    tfdist.add_process_set([0])
except tfdist.errors.ConfigError as error:
    assert "process_sets='dynamic'" in str(error)

# A thread of the user's calls MPI all the while.
own = MPI.COMM_WORLD.Dup()
sums = []
thread = threading.Thread(target=lambda: sums.extend(own.allreduce(step) for step in range(200)))
thread.start()
for step in range(200):
    assert float(tfdist.allreduce(float(step), op=tfdist.Sum, process_set=split)) == step * split.size()
thread.join()
assert sums == [3 * step for step in range(200)]

tfdist.shutdown()
assert (pair.process_set_id, split.process_set_id) == (None, None)
print("came to the end")
"""


@pytest.mark.slice("launch")
def test_static_process_sets(launch: Any) -> None:
    """From ranks, and from a communicator that is another one on some ranks."""
    run(launch, 3, SETS).assert_passed(3)


NESTED = """
import tfdist
from mpi4py import MPI
half = {half}
part = MPI.COMM_WORLD.Split(rank // 2).Split(0, key=-rank)
other = MPI.COMM_WORLD.Split(rank)
mine = tfdist.ProcessSet(other)
tfdist.init(comm=half, process_sets=[mine])
assert tfdist.size() == 2
assert tfdist.get_process_set_ids_and_ranks() == {{0: [0, 1], 1: [0], 2: [1]}}
assert mine.ranks == [tfdist.rank()]
assert float(tfdist.allreduce(float(rank), op=tfdist.Sum, process_set=mine)) == rank
assert sorted(tfdist.allgather_object(rank)) == [rank // 2 * 2, rank // 2 * 2 + 1]
print("came to the end")
"""


@pytest.mark.slice("launch")
@pytest.mark.parametrize("half", ["MPI.COMM_WORLD.Split(rank // 2)", "[rank // 2 * 2 + 1, rank // 2 * 2]"])
def test_process_sets_in_a_part_of_the_job(launch: Any, half: str) -> None:
    """Their ranks are counted in that part."""
    run(launch, 4, NESTED.format(half=half)).assert_passed(4)


# Each is refused on both ranks alike, and the next attempt starts afresh: mpi4py keeps MPI running.
WRONG_SETS = """
import tfdist
from mpi4py import MPI
everybody, left_out = MPI.COMM_WORLD, MPI.COMM_WORLD.Split(0 if rank else MPI.UNDEFINED)

def refused(error, text, *sets):
    try:
        tfdist.init(process_sets=list(sets))
    except tfdist.errors.TfdistError as caught:
        assert type(caught).__name__ == error and text in str(caught), repr(caught)
        assert not tfdist.is_initialized()
        assert len(set(everybody.allgather(str(caught)))) == 1
    else:
        raise AssertionError(sets)

refused("MismatchError", "add_process_set 'rank 0'", tfdist.ProcessSet([0, 1] if rank else [0]))
refused("MismatchError", "communicators of process sets", tfdist.ProcessSet([0, 1] if rank else everybody))
refused("MismatchError", "add_process_set 'rank 0'", *[tfdist.ProcessSet([r]) for r in ((0, 1) if rank else (1, 0))])
refused("ConfigError", "expected one or more distinct ranks of 0 to 1", tfdist.ProcessSet([0, 2]))
refused("ConfigError", "already exists", tfdist.ProcessSet([0]), tfdist.ProcessSet([0]))
twice = tfdist.ProcessSet([0])
refused("ConfigError", "is already in use", twice, twice)
refused("ConfigError", "already exists", tfdist.ProcessSet([0, 1]), tfdist.ProcessSet(everybody))
refused("ConfigError", "is MPI.COMM_NULL, or has processes that did not call tfdist.init together, on the ranks [0]",
        tfdist.ProcessSet(left_out))
tfdist.init(process_sets=[twice])
assert tfdist.get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0]}
print("came to the end")
"""


@pytest.mark.slice("launch")
def test_wrong_static_process_sets(launch: Any) -> None:
    run(launch, 2, WRONG_SETS).assert_passed(2)


ALONE = """
import tfdist
from mpi4py import MPI
tfdist.init(comm={comm} if rank else None)
"""


@pytest.mark.slice("launch")
@pytest.mark.parametrize(("comm", "text"), [("[0]", "init received the ranks [0] on rank 1"), ("7", "received 7.")])
def test_rank_whose_arguments_are_refused_ends_the_job(launch: Any, comm: str, text: str) -> None:
    """The other one waits in init; mpi4py, which started MPI, would wait for it when the interpreter exits."""
    done = run(launch, 2, ALONE.format(comm=comm))
    assert done.code == 1
    assert "tfdistrun: rank 1 on " in done.stderr
    assert "ConfigError: " in done.stderr and text in done.stderr


SERIALIZED = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
import tfdist
tfdist.init(process_sets="dynamic")
assert not tfdist.mpi_threads_supported()
assert float(tfdist.allreduce(1.0, op=tfdist.Sum)) == 2
try:
    tfdist.add_process_set([0, 1])
except tfdist.errors.ConfigError as error:
    assert "process sets need MPI at thread level 3 (MPI_THREAD_MULTIPLE); it runs at 2" in str(error)
else:
    raise AssertionError("made a process set")
assert float(tfdist.allreduce(1.0, op=tfdist.Sum)) == 2
print("came to the end")
"""


@pytest.mark.slice("launch")
def test_mpi_without_threads(launch: Any) -> None:
    """Collectives of all ranks run; process sets are refused."""
    run(launch, 2, SERIALIZED).assert_passed(2)


# Rank 1 kills itself from a thread while its main thread is in a stream of collectives of 4 MB each.
KILL = """
import threading
import tensorflow as tf, tfdist
tfdist.init(process_sets=[tfdist.ProcessSet([0, 1])])
pair = tfdist.process_sets.of_number(1)
victim = {victim}
under_way = threading.Event()

def kill():
    under_way.wait()
    with open("killed", "w") as file:
        file.write(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)

if rank == victim:
    threading.Thread(target=kill, daemon=True).start()
x = tf.ones([3 << 18])  # divides by two and by three
variables = [tf.Variable(x), tf.Variable(1)]
steps = 0
while True:
    steps += 1
    if steps == 4:
        under_way.set()
    {collective}
"""
# Name -> the number of ranks, the one that dies, what all ranks call.
COLLECTIVES = {
    "allreduce": (2, 1, "tfdist.allreduce(x)"),
    "grouped allreduce": (3, 2, "tfdist.grouped_allreduce([x, x, 1.0], op=tfdist.Max)"),
    "allgather": (2, 0, "tfdist.allgather(x[:rank << 18])"),
    "broadcast, the root dies": (2, 1, "tfdist.broadcast(x, 1)"),
    "broadcast, a receiver dies": (2, 0, "tfdist.broadcast(x, 1)"),
    "broadcast_variables": (3, 2, "tfdist.broadcast_variables(variables, 0)"),
    "alltoall": (2, 1, "tfdist.alltoall(x)"),
    "reducescatter": (3, 2, "tfdist.reducescatter(x)"),
    "adasum": (2, 0, "tfdist.allreduce(x, op=tfdist.Adasum)"),
    "barrier": (2, 1, "tfdist.barrier()"),
    "join, one that has joined dies": (2, 1, "tfdist.join() if rank == 1 and steps == 4 else tfdist.allreduce(x)"),
    "join, the last one dies": (2, 0, "tfdist.join() if rank and steps == 4 else tfdist.allreduce(x)"),
    "in a process set": (3, 1, "tfdist.allreduce(x, process_set=pair) if pair.included() else tfdist.barrier()"),
}


# The slice has the others: tests/cpp kills ranks in each collective, without TensorFlow around it.
FEW = ("grouped allreduce", "join, the last one dies")
OTHERS = [pytest.param(name, marks=pytest.mark.slice("launch")) for name in COLLECTIVES if name not in FEW]


@pytest.mark.parametrize("name", [*FEW, *OTHERS])
def test_rank_that_dies_in_a_collective(launch: Any, name: str) -> None:
    """The others wait for it: all of them end soon, and the summary names it."""
    ranks, victim, collective = COLLECTIVES[name]
    done = run(launch, ranks, KILL.format(victim=victim, collective=collective))
    end = time.time()
    assert done.code == 137, done.stderr
    assert end - float((launch.folder / "killed").read_text()) < BOUND_S
    assert f"tfdistrun: rank {victim} on " in done.stderr
    assert "killed by SIGKILL" in done.stderr
    assert "next: " in done.stderr
