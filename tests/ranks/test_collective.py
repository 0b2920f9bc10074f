"""What holds for all collectives together: one order on every rank, whatever is in the graph and beside it."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist

SIZES = pytest.mark.ranks(1, 2, 3, 4)


@SIZES
def test_barrier_lets_nobody_pass_before_all_have_come(world, shared_tmp_path):
    """Eagerly and in a function, where nothing else depends on it."""

    @tf.function
    def meet(x):
        tfdist.barrier(name="in a function")
        return x

    for round_, wait in enumerate([lambda: tfdist.barrier(name="eager"), lambda: meet(1)]):
        (shared_tmp_path / f"{round_}_{tfdist.rank()}").touch()
        wait()
        assert len(list(shared_tmp_path.glob(f"{round_}_*"))) == world


def test_program_order_holds_when_one_rank_is_late(world):
    """Independent collectives of one function; the first input takes longer on one rank only."""

    @tf.function
    def step(x, work):
        slow = tf.foldl(lambda total, matrix: total @ matrix, work)
        first = tfdist.allreduce(x + 0.0 * tf.reduce_sum(slow), op=tfdist.Sum, name="first")
        second = tfdist.allreduce(x * 10, op=tfdist.Sum, name="second")
        return first, second

    rounds = 200 if tfdist.rank() == 0 else 1
    first, second = step(tf.constant(tfdist.rank() + 1.0), tf.zeros([rounds, 128, 128]))
    assert float(second) == 10 * float(first) == 10 * world * (world + 1) / 2


@pytest.mark.ranks(2, 3, 4)
def test_program_order_holds_through_control_flow(world):
    """Collectives in a cond and a loop that capture variables, and beside them; one rank is slow inside the cond."""
    variable = tf.Variable(1.0)
    sink = tf.Variable(tf.zeros([3]))
    rounds = 100 if tfdist.rank() == 0 else 1

    @tf.function
    def step(x, work):
        def in_cond():
            slow = tf.foldl(lambda total, matrix: total @ matrix, work)
            variable.assign(tfdist.allreduce(variable * x + 0.0 * tf.reduce_sum(slow), op=tfdist.Sum, name="in cond"))
            return 0

        tf.cond(variable > 0, in_cond, lambda: 0)
        after = tfdist.allreduce(x, op=tfdist.Sum, name="after the cond")
        for _ in tf.range(3):
            variable.assign_add(tfdist.allreduce(1.0, op=tfdist.Sum, name="in loop"))
        tfdist.broadcast_variables([sink], root_rank=0)
        last = tfdist.allreduce(x, op=tfdist.Max, name="last")
        tfdist.barrier(name="end")
        return after, last

    total = world * (world + 1) / 2
    for _ in range(5):
        variable.assign(1.0)
        after, last = step(tf.constant(tfdist.rank() + 1.0), tf.zeros([rounds, 64, 64]))
        assert (float(after), float(last)) == (total, world)
        assert float(variable) == total + 3 * world


@pytest.mark.ranks(2, 3, 4)
def test_every_collective_keeps_its_place_in_a_graph(world):
    """Independent of each other, with inputs that become ready in another order on every rank."""

    @tf.function
    def step(x, work):
        slow = tf.reduce_sum(tf.foldl(lambda total, matrix: total @ matrix, work))
        late, early = x + slow, x * 2.0
        odd, even = (late, early) if tfdist.rank() % 2 else (early, late)
        ones = tf.ones([world])
        return [
            tf.reduce_sum(tfdist.allreduce(0.0 * odd + ones, op=tfdist.Sum)),
            tf.reduce_sum(tfdist.allgather(0.0 * even + ones)),
            tf.reduce_sum(tfdist.broadcast(0.0 * odd + 2.0 * ones, 0)),
            tf.reduce_sum(tfdist.alltoall(0.0 * even + 3.0 * ones)),
            tf.reduce_sum(tfdist.reducescatter(0.0 * odd + 4.0 * ones)),
            tf.reduce_sum(tfdist.allreduce(0.0 * even + 5.0 * ones, op=tfdist.Adasum)),
        ]

    for _ in range(5):
        sums = [float(value) for value in step(tf.constant(1.0), tf.zeros([60, 64, 64]))]
        expected = [world**2, world**2, 2 * world, 3 * world, 4, 5 * world]
        np.testing.assert_allclose(sums, expected, rtol=1e-6)


@SIZES
@pytest.mark.transport("mpi")
def test_mpi4py_beside(world):
    """MPI calls of the user and ours do not meet, in whatever order they come."""
    from mpi4py import MPI

    for tag in range(3):
        request = MPI.COMM_WORLD.isend(tfdist.rank(), dest=(tfdist.rank() + 1) % world, tag=tag)
        assert float(tfdist.allreduce(float(tfdist.rank()), op=tfdist.Sum, name="x")) == world * (world - 1) / 2
        assert MPI.COMM_WORLD.allreduce(tfdist.rank()) == world * (world - 1) // 2
        assert np.array_equal(tfdist.allgather(tfdist.rank(), name="ranks"), MPI.COMM_WORLD.allgather(tfdist.rank()))
        assert MPI.COMM_WORLD.recv(source=(tfdist.rank() - 1) % world, tag=tag) == (tfdist.rank() - 1) % world
        request.wait()
