"""Process sets without other ranks: what they are made of, before they are in use, and in a world of one."""

import numpy as np
import pytest

from tfdist.errors import ConfigError, NotInitializedError
from tfdist.world.process_sets import ProcessSet


@pytest.mark.parametrize("ranks", [[2, 0, 1], (1, 2, 0), range(3), {0, 1, 2}, np.arange(3), iter([1, 0, 2])], ids=type)
def test_ranks_are_ascending(ranks):
    process_set = ProcessSet(ranks)
    assert process_set.ranks == [0, 1, 2]
    assert repr(process_set) == "ProcessSet([0, 1, 2], process_set_id=None)"


def test_ranks_are_a_copy():
    process_set = ProcessSet([0, 1])
    process_set.ranks.append(7)
    assert process_set.ranks == [0, 1]


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1, 0], [0.0, 1.0], "01", ["0"], 3, None, [None], [[0]]], ids=repr)
def test_what_is_no_set_of_ranks(ranks):
    with pytest.raises(ConfigError, match="needs one or more distinct ranks, or an mpi4py communicator; received") as e:
        ProcessSet(ranks)
    assert repr(ranks) in str(e.value)


@pytest.mark.parametrize("question", ["number", "included", "size", "rank"])
def test_a_set_that_is_not_in_use(question):
    with pytest.raises(NotInitializedError, match=r"ProcessSet\(\[0\], process_set_id=None\) is not in use\. Pass it"):
        getattr(ProcessSet([0]), question)()


BEFORE_INIT = """
import pytest, tfdist
for call in (
    lambda: tfdist.add_process_set([0]),
    lambda: tfdist.remove_process_set(tfdist.ProcessSet([0])),
    lambda: tfdist.global_process_set.included(),
    lambda: tfdist.global_process_set.ranks,
    lambda: tfdist.get_process_set_ids_and_ranks(),
    lambda: tfdist.rank_op(),
    lambda: tfdist.size_op(),
    lambda: tfdist.join(),
    lambda: tfdist.alltoall([1.0]),
    lambda: tfdist.reducescatter([1.0]),
    lambda: tfdist.mpi_threads_supported(),
):
    with pytest.raises(tfdist.errors.NotInitializedError, match=r"tfdist\\.init\\(\\)"):
        call()
"""
ALONE = """
import numpy as np, pytest, tfdist
given = tfdist.ProcessSet([0])
for _ in range(2):
    tfdist.init(process_sets=[given])
    assert tfdist.get_process_set_ids_and_ranks() == {0: [0], 1: [0]}
    assert (given.process_set_id, given.rank(), given.size(), given.included()) == (1, 0, 1, True)
    assert np.array_equal(tfdist.allreduce([1.5], process_set=given), [1.5])
    with pytest.raises(tfdist.errors.ConfigError, match="process_sets='dynamic'"):
        tfdist.add_process_set([0])
    with pytest.raises(tfdist.errors.ConfigError, match="without a launcher and uses no MPI"):
        tfdist.mpi_threads_supported()
    tfdist.shutdown()
    assert given.process_set_id is None
tfdist.init(comm=[0], process_sets="dynamic")
added = tfdist.add_process_set(given)
assert added is given and tfdist.allgather_object("x", process_set=given) == ["x"]
assert tfdist.remove_process_set(given) and not tfdist.remove_process_set(given)
with pytest.raises(tfdist.errors.ConfigError, match="received the ranks .1.; expected one or more distinct"):
    tfdist.add_process_set([1])
"""
COMMUNICATORS = """
import pytest, tfdist
from mpi4py import MPI
tfdist.init(process_sets="dynamic")
with pytest.raises(tfdist.errors.ConfigError, match="can only be made by tfdist.init"):
    tfdist.add_process_set(tfdist.ProcessSet(MPI.COMM_SELF))
tfdist.shutdown()
whole = tfdist.ProcessSet(MPI.COMM_WORLD)
assert repr(whole) == "ProcessSet(a communicator, process_set_id=None)"
tfdist.init(process_sets=[whole])
assert (whole.ranks, whole.process_set_id) == ([0], 1)
tfdist.shutdown()
for wrong in (MPI.COMM_SELF, MPI.COMM_NULL):
    with pytest.raises(tfdist.errors.ConfigError, match="without a launcher and is a world of one"):
        tfdist.init(comm=wrong)
"""


@pytest.mark.parametrize(
    "script", [BEFORE_INIT, ALONE, COMMUNICATORS], ids=["before init", "world of one", "communicators"]
)
def test_in_a_fresh_process(run_script, script):
    run_script(script)
