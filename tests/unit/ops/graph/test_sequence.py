"""What is kept on one side of the collectives of a graph; without a collective."""

import pytest
import tensorflow as tf

from tfdist.ops.graph import call, sequence


def trace(function):
    return tf.function(function).get_concrete_function().graph


def waits_for(graph, name):
    op = graph.get_operation_by_name(name)
    return {before.name for before in (*op.control_inputs, *(tensor.op for tensor in op.inputs))}


def mixed():
    """What gradients may be: a tensor, nothing, and rows."""
    rows = tf.IndexedSlices(tf.ones([1], name="rows"), tf.constant([0], name="places"))
    return [tf.ones([], name="dense"), None, rows]


def test_after_all_values():
    def step():
        with sequence.after(mixed()):
            tf.no_op(name="collective")

    assert waits_for(trace(step), "collective") == {"dense", "rows", "places"}


def test_none_is_there_before_all_are():
    def step():
        dense, nothing, rows = sequence.together(mixed())
        assert nothing is None
        tf.identity(dense, name="update")
        tf.identity(rows.values, name="update_of_rows")

    graph = trace(step)
    for update in ("update", "update_of_rows"):
        (gate,) = graph.get_operation_by_name(update).inputs
        assert waits_for(graph, gate.op.name) == {"dense", "rows", "places"}


def test_after_what_a_section_changes():
    early, late = tf.Variable(1.0), tf.Variable(2.0)

    def step():
        early.assign(3.0, name="before")
        section = sequence.Section()
        value = late.read_value() + 1.0
        late.assign_sub(value)
        tf.cond(value > 0, lambda: early.assign(4.0), lambda: early.assign(5.0))
        with section.done():
            tf.no_op(name="collective")

    graph = trace(step)
    kinds = {op.type for op in graph.get_operation_by_name("collective").control_inputs}
    assert kinds == {"AssignSubVariableOp", "If"}


@pytest.mark.parametrize("eager", [True, False])
def test_nothing_changes_where_nothing_blocks(monkeypatch, eager):
    monkeypatch.setattr(call, "overlaps", lambda: not eager)
    given = [tf.ones([])]

    def step():
        section = sequence.Section()
        assert sequence.together(given)[0] is given[0]
        with sequence.after(given), section.done():
            tf.no_op(name="collective")

    if eager:
        step()
    else:
        assert not waits_for(trace(step), "collective")
