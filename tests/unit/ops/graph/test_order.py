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
