"""Without overlap a step has one collective of gradients, and nothing that takes time may run on either side of any."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks import DataParallel
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.testing import expected_sum, summable
from tfdist.training.gradients import GradientReduction, Grouping

SHAPES = [(3, 4), (), (7,)]


def inputs():
    return [tf.constant(summable(shape, "float32", tfdist.rank(), seed=i)) for i, shape in enumerate(SHAPES)]


def traced(how):
    """The results of a step that computes gradients, reduces them and makes updates of them; and its graph."""
    variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]
    table = tf.Variable(tf.zeros([4, 2]), name="table")

    @tf.function
    def step(*given):
        gradients = [tf.add(gradient, 0.0, name=f"gradient{i}") for i, gradient in enumerate(given)]
        if how.sparse_as_dense is False and how.grouping.parts:
            rows = tf.add(tf.ones([1, 2]), 0.0, name="gradient_of_rows")
            gradients.append(tf.IndexedSlices(rows, tf.constant([1]), tf.constant([4, 2])))
        reduced = how.reduce(gradients, [*variables, table][: len(gradients)], "grads")
        return [tf.identity(gradient, name="update") for gradient in reduced[: len(SHAPES)]]

    return step(*inputs()), step.get_concrete_function(*inputs()).graph


def collectives(graph):
    return [op for op in graph.get_operations() if op.type.startswith("Tfdist")]


def waits_for(op):
    """All that runs before an op."""
    found, left = set(), [op]
    while left:
        for before in (*left[-1].control_inputs, *(tensor.op for tensor in left.pop().inputs)):
            if before.name not in found:
                found.add(before.name)
                left.append(before)
    return found


@pytest.mark.parametrize("threshold", ["0", "64"])
def test_all_gradients_are_one_collective(world, monkeypatch, threshold):
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", threshold)
    results, graph = traced(GradientReduction(op=tfdist.Sum))
    assert [op.type for op in collectives(graph)] == ["TfdistGroupedAllreduce"]
    for i, (shape, result) in enumerate(zip(SHAPES, results, strict=True)):
        np.testing.assert_array_equal(result, expected_sum(shape, "float32", world, seed=i))


@pytest.mark.ranks(2)
def test_several_run_between_all_gradients_and_all_updates(world):
    results, graph = traced(GradientReduction(op=tfdist.Sum, grouping=Grouping(parts=3)))
    ops = collectives(graph)
    assert len(ops) > 3
    gradients = {"gradient0", "gradient1", "gradient2", "gradient_of_rows"}
    for op in ops:
        assert gradients <= waits_for(op)
    updates = [op for op in graph.get_operations() if op.name.startswith("update")]
    assert len(updates) == len(SHAPES)
    for update in updates:
        assert {op.name for op in ops} <= waits_for(update)
    for i, (shape, result) in enumerate(zip(SHAPES, results, strict=True)):
        np.testing.assert_array_equal(result, expected_sum(shape, "float32", world, seed=i))


@pytest.mark.ranks(2)
def test_the_loss_is_reduced_after_the_updates():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    x, y = np.full((2, 3), tfdist.rank() + 1.0, "float32"), np.ones((2, 1), "float32")
    model.fit(x, y, batch_size=2, verbose=0, callbacks=[DataParallel()])
    ModelHook.of(model)
    step = tf.function(lambda: model.train_step((tf.constant(x), tf.constant(y))))
    gradients, loss = collectives(step.get_concrete_function().graph)
    before = [loss.graph.get_operation_by_name(name) for name in waits_for(loss)]
    assigned = {op.inputs[0].name for op in before if op.type.startswith("Assign")}
    handles = {step.get_concrete_function().graph.capture(v.value.handle).name for v in model.trainable_variables}
    assert len(handles) == 4 and handles <= assigned
    assert gradients in before
