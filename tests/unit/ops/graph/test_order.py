"""The variable that keeps collectives in program order."""

from collections.abc import Callable

TRACED = """
import tensorflow as tf
import tfdist

tfdist.init()
traced = []

@tf.function
def step():
    traced.append(1)
    return tfdist.allreduce(tf.constant([1.0]), name="x")

step()
step()
assert len(traced) == 1, traced
"""


def test_first_function_of_a_process_is_traced_once(run_script: Callable[..., str]) -> None:
    run_script(TRACED)


BRANCH_OF_A_SESSION = """
import tensorflow as tf
import tfdist
import tfdist.tensorflow as hvd

tfdist.init()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.constant([2.0])
    fetched = tf.cond(tf.constant(True), lambda: hvd.allreduce(x, name="x"), lambda: x)
    assert session.run(fetched) == [2.0]
    assert tfdist.allgather_object("beside it") == ["beside it"]
assert tfdist.allreduce(tf.constant([3.0]), name="x") == [3.0]
"""


def test_first_collective_in_a_branch_that_a_session_runs(run_script: Callable[..., str]) -> None:
    run_script(BRANCH_OF_A_SESSION)
