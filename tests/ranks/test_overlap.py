"""Gradients whose reduction is started first and awaited later, as on a GPU: the same bits and errors as at once.

On the CPU a thread does the work; what can go wrong with streams is tested in tests/cpp.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.ops.graph import call, xla
from tfdist.testing import expected_sum, summable
from tfdist.training.gradients import GradientReduction, Grouping, weighted_by

SIZES = pytest.mark.ranks(1, 2, 3, 4)
SHAPES = [(3, 4), (), (7,), (2, 2, 2), (5,)]
COMPILED = pytest.param(
    lambda f: tf.function(f, jit_compile=True),
    marks=pytest.mark.skipif(bool(xla.obstacle()), reason=str(xla.obstacle())),
    id="compiled",
)
MODES = pytest.mark.parametrize(
    "wrap", [pytest.param(lambda f: f, id="eager"), pytest.param(tf.function, id="function"), COMPILED]
)


@pytest.fixture(autouse=True)
def _overlap(monkeypatch):
    monkeypatch.setattr(call, "overlaps", lambda: True)


def inputs():
    return [tf.constant(summable(shape, "float32", tfdist.rank(), seed=i)) for i, shape in enumerate(SHAPES)]


def reduce(how, gradients, label="grads"):
    return how.reduce(gradients, [tf.Variable(tf.zeros_like(g), name=f"v{i}") for i, g in enumerate(gradients)], label)


def ops_of(function, *arguments):
    graph = function.get_concrete_function(*arguments).graph
    return [op.type for op in graph.get_operations() if op.type.startswith("Tfdist")]


@SIZES
@MODES
def test_sums_are_exact(wrap):
    how = GradientReduction(op=tfdist.Sum, grouping=Grouping(parts=3))
    variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]
    results = wrap(lambda *gradients: how.reduce(list(gradients), variables, "grads"))(*inputs())
    for i, (shape, result) in enumerate(zip(SHAPES, results, strict=True)):
        np.testing.assert_array_equal(result, expected_sum(shape, "float32", tfdist.size(), seed=i))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "how",
    [
        GradientReduction(grouping=Grouping(parts=2)),
        GradientReduction(compression=tfdist.Compression.fp16, grouping=Grouping(parts=2)),
        GradientReduction(predivide_factor=2.0, grouping=Grouping(parts=2)),
        GradientReduction(op=tfdist.Adasum, grouping=Grouping(parts=2)),
    ],
    ids=["average", "fp16", "predivide", "adasum"],
)
def test_bits_are_those_of_a_reduction_at_once(monkeypatch, how):
    started = [result.numpy() for result in reduce(how, inputs())]
    monkeypatch.setattr(call, "overlaps", lambda: False)
    for one, other in zip(started, reduce(how, inputs()), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.ranks(3)
def test_weights_count():
    with weighted_by(tf.constant((0, 1, 3)[tfdist.rank()], tf.int64)):
        (result,) = reduce(GradientReduction(), [tf.constant([float(tfdist.rank())])])
    assert float(result[0]) == (1 * 1 + 3 * 2) / 4


@pytest.mark.ranks(2)
def test_all_are_started_before_the_first_is_awaited():
    how = GradientReduction(op=tfdist.Sum, grouping=Grouping(parts=3))
    variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]
    step = tf.function(lambda *gradients: how.reduce(list(gradients), variables, "grads"))
    assert ops_of(step, *inputs()) == ["TfdistStartAllreduce"] * 3 + ["TfdistAwait"] * 3


@pytest.mark.ranks(2, 3)
def test_rows_of_sparse_gradients_travel_between():
    slices = tf.IndexedSlices(tf.ones([1, 2]) * (tfdist.rank() + 1), [tfdist.rank()], [4, 2])
    dense = tf.constant([tfdist.rank() + 1.0])
    sources = [tf.Variable(tf.zeros([4, 2]), name="table"), tf.Variable([0.0], name="bias")]
    table, bias = GradientReduction(op=tfdist.Sum).reduce([slices, dense], sources, "grads")
    total = sum(range(1, tfdist.size() + 1))
    assert float(tf.reduce_sum(table.values)) == 2 * total
    assert float(bias[0]) == total


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_mismatch_fails_on_every_rank_and_next_step_runs(wrap):
    size = 3 + (tfdist.rank() == tfdist.size() - 1)
    how = GradientReduction(op=tfdist.Sum)
    variable = tf.Variable(tf.zeros([size]), name="kernel")
    step = wrap(lambda gradient: how.reduce([gradient], [variable], "grads"))
    with pytest.raises((errors.MismatchError, tf.errors.FailedPreconditionError), match="kernel"):
        step(tf.ones([size]))
    total = tfdist.allreduce(tf.constant(summable((4,), "float32", tfdist.rank())), op=tfdist.Sum)
    np.testing.assert_array_equal(total, expected_sum((4,), "float32", tfdist.size()))


@pytest.mark.ranks(2, 3)
def test_a_gradient_goes_through():
    """Of w_r . (x_0 + x_1 + ...) by this rank's x: the sum of all weights."""
    how = GradientReduction(op=tfdist.Sum, grouping=Grouping(parts=2))
    x = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
    variables = [tf.Variable([0.0, 0.0], name="a"), tf.Variable(0.0, name="b")]
    with tf.GradientTape() as tape:
        tape.watch(x)
        first, second = how.reduce(x, variables, "grads")
        loss = (tfdist.rank() + 1.0) * (tf.reduce_sum(first) + 10 * second)
    total = sum(range(1, tfdist.size() + 1))
    one, other = tape.gradient(loss, x)
    np.testing.assert_array_equal(one, [total, total])
    assert float(other) == 10 * total


@pytest.mark.ranks(1)
def test_a_call_is_awaited_once():
    given = {"tensors": [tf.constant([1.0])], "weight": tf.constant(1, tf.int64), "weighted": False, "label": "x"}
    factors = {"prescale": call.factor_of(1.0), "postscale": call.factor_of(1.0)}
    pending, number = call.run("tfdist_start_allreduce", reduction="sum", tensor_names=["x"], **given, **factors)
    (result,) = call.run("tfdist_await", pending=pending, call=number, label="x")
    assert result.numpy() == [1.0]
    for other in (number, 0, 10**9):
        with pytest.raises(errors.ConfigError, match="expected the number that a TfdistStartAllreduce returned"):
            call.run("tfdist_await", pending=pending, call=other, label="x")


@pytest.mark.ranks(1)
def test_no_cluster_of_xla_takes_one_of_the_two():
    how = GradientReduction(op=tfdist.Sum)
    variable = tf.Variable([0.0], name="v")
    step = tf.function(lambda x: how.reduce([x], [variable], "grads"))
    graph = step.get_concrete_function(tf.constant([1.0])).graph
    kinds = {op.type: op.get_attr("_XlaCompile") for op in graph.get_operations() if op.type.startswith("Tfdist")}
    assert kinds == {"TfdistStartAllreduce": False, "TfdistAwait": False}
