"""Which gradients travel together, whose stay, and which ranks take part; without a collective."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.ops.graph import call
from tfdist.ops.reduction import Average, Max, Sum
from tfdist.training import gradients
from tfdist.training.gradients import GradientReduction, Grouping
from tfdist.training.local_variable import LocalVariables, key_of


def variables(count):
    return [tf.Variable(float(index), name=f"v{index}") for index in range(count)]


def split(grouping, sources):
    """Of scalar gradients."""
    return grouping.split(sources, [tf.constant(0.0)] * len(sources))


@pytest.mark.parametrize(
    ("parts", "total", "expected"),
    [
        (1, 4, [[0, 1, 2, 3]]),
        (2, 5, [[3, 4], [0, 1, 2]]),
        (3, 7, [[5, 6], [3, 4], [0, 1, 2]]),
        (4, 2, [[1], [0]]),
        (3, 0, []),
    ],
)
def test_parts_are_equally_long_last_layers_first(parts, total, expected):
    for grouping in (Grouping.of(num_groups=parts), Grouping.of(groups=parts)):
        assert split(grouping, variables(total)) == expected


@pytest.mark.parametrize("threshold", ["0", "100"])
def test_without_overlap_all_gradients_are_one_collective(monkeypatch, threshold):
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", threshold)
    given = [tf.zeros([30]), tf.zeros([20], tf.float16), tf.zeros([40])]
    assert Grouping.of().split(variables(3), given) == [[0, 1, 2]]
    assert Grouping.of().split([], []) == []
    assert Grouping.of(num_groups=2).split(variables(3), given) == [[2], [0, 1]]


@pytest.fixture
def overlap(monkeypatch):
    """As on a GPU, and with a communication thread."""
    monkeypatch.setattr(call, "overlaps", lambda: True)


@pytest.mark.parametrize("thread", ["0", "1"])
def test_a_thread_makes_buckets(monkeypatch, thread):
    monkeypatch.setenv("TFDIST_COMMUNICATION_THREAD", thread)
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "4")
    assert len(split(Grouping.of(), variables(3))) == (3 if thread == "1" else 1)


def test_a_plan_is_made_once(monkeypatch, overlap):
    calls = []

    def plan(*arguments):
        calls.append(arguments)
        return [[0], [1]]

    monkeypatch.setattr(gradients, "_planned", functools.lru_cache(plan))
    for _ in range(3):
        assert split(Grouping.of(), variables(2)) == [[1], [0]]
    assert len(calls) == 1
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "100")
    split(Grouping.of(), variables(2))
    assert [arguments[2] for arguments in calls] == [8 << 20, 100]


def test_buckets_are_filled_from_the_last_gradient_on(monkeypatch, overlap):
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "100")
    counts = [5, 30, 20, 5, 10]  # of 4 bytes each
    given = [tf.zeros([count]) for count in counts]
    grouping = Grouping.of()
    assert grouping.split(variables(5), given) == [[3, 4], [1], [0, 2]]
    given[2] = tf.zeros([20], tf.float16)  # a type is a bucket of its own
    assert grouping.split(variables(5), given) == [[2], [1], [0, 3, 4]]
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", "0")
    assert grouping.split(variables(5), given) == [[4], [3], [2], [1], [0]]
    assert grouping.split([], []) == []


def test_gradients_of_unknown_size_travel_together(overlap):
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2])])
    def plan(unknown, known):
        plans.append(Grouping.of().split([unknown, known], [unknown, known]))

    plans = []
    plan(tf.zeros([3]), tf.zeros([2]))
    assert plans == [[[0, 1]]]


def test_lists_and_the_rest():
    v = variables(5)
    grouping = Grouping.of(groups=[[v[3], v[0]], [], (v[4],)])
    assert split(grouping, v) == [[3, 0], [4], [1, 2]]
    assert split(grouping, v[:2]) == [[0], [1]]
    assert split(Grouping.of(groups=[]), v) == [[0, 1, 2, 3, 4]]


def test_lists_know_a_keras_variable_by_the_one_inside():
    v = [keras.Variable(1.0), keras.Variable(2.0)]
    assert split(Grouping.of(groups=[[v[1].value]]), v) == [[1], [0]]
    assert split(Grouping.of(groups=[[v[1]]]), [v[0].value, v[1].value]) == [[1], [0]]


def test_lists_of_another_model_are_refused():
    grouping = Grouping.of(groups=[variables(2)])
    with pytest.raises(ConfigError, match=r"none of the variables.*v0, v1, v2"):
        split(grouping, variables(3))
    assert split(grouping, []) == []


FIRST = tf.Variable(1.0, name="first")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_groups": 2, "groups": 2}, "not both"),
        ({"num_groups": 2, "groups": [[FIRST]]}, "not both"),
        ({"num_groups": -1}, "num_groups must be a number, 1 or more; received -1"),
        ({"num_groups": 1.5}, "received 1.5"),
        ({"num_groups": True}, "received True"),
        ({"groups": 0}, "groups must be a number, 1 or more, or a list of lists of variables; received 0"),
        ({"groups": -2}, "received -2"),
        ({"groups": "all"}, "received 'all'"),
        ({"groups": [FIRST]}, "list of lists"),
        ({"groups": [["first"]]}, "received 'first' in one"),
        ({"groups": [[FIRST], [FIRST]]}, "first twice"),
    ],
)
def test_groups_that_mean_nothing_are_refused(arguments, expected):
    with pytest.raises(ConfigError, match=expected):
        Grouping.of(**arguments)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"op": Max}, "op=Average or op=Sum or op=Adasum; received <ReduceOp.MAX"),
        ({"op": None}, "received None"),
        ({"predivide_factor": 0.0}, "greater than 0; received 0.0"),
        ({"predivide_factor": -1.0}, "received -1.0"),
        ({"predivide_factor": float("nan")}, "received nan"),
        ({"predivide_factor": float("inf")}, "received inf"),
        ({"op": Sum, "predivide_factor": 2.0}, "needs op=Average; received op=Sum"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, expected):
    with pytest.raises(ConfigError, match=expected):
        GradientReduction(**settings)


class Ranks:
    """A process set as the collectives take one."""

    def __init__(self, size, included):
        self.size = lambda: size
        self.included = lambda: included


def test_ranks_outside_the_set_keep_their_gradients():
    shared, own = variables(2)
    local = LocalVariables()
    local.add(own)
    reduction = GradientReduction(process_set=Ranks(4, included=False))
    first, second = reduction.reduce([tf.constant(8.0), tf.constant(8.0)], [shared, own], "g", local, factor=3.0)
    assert (float(first), float(second)) == (24.0, 6.0)
    assert bool(reduction.agree(tf.constant(True)))
    norm = reduction.global_norm([tf.constant(3.0), tf.constant(4.0)], [shared, own], local)
    assert float(norm) == 5.0


@pytest.fixture
def collectives(monkeypatch):
    """Calls of the collectives, which give back what they were given times 10."""
    calls = []

    def allreduce(tensor, **arguments):
        calls.append(arguments)
        return tensor

    def start(how, tensors):
        calls.append(vars(how))
        return lambda: [tensor * 10 for tensor in tensors]

    monkeypatch.setattr(gradients.allreduce, "allreduce", allreduce)
    monkeypatch.setattr(gradients.allreduce.FusedAllreduce, "start", start)
    return calls


def test_the_set_goes_into_every_collective(collectives):
    ranks = Ranks(4, included=True)
    reduction = GradientReduction(predivide_factor=2.0, process_set=ranks)
    v = variables(2)
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([0]), tf.constant([1]))
    reduced = reduction.reduce([slices, tf.constant(3.0)], v, "g", factor=5.0)
    assert float(reduced[1]) == 30.0
    reduction.agree(tf.constant(True))
    reduction.global_norm([tf.constant(1.0), None], v, LocalVariables())
    assert [call["process_set"] for call in collectives] == [ranks] * 4
    grouped, gathered = collectives[:2]
    assert (grouped["op"], float(grouped["before"]), float(grouped["after"])) == (Sum, 0.5, 5.0 * 2.0 / 4)
    assert (gathered["op"], gathered["postscale_factor"]) == (Average, 5.0)


def test_names_leave_out_local_variables_and_numbers(collectives):
    """What a rank has of its own must not shift the names of what all have."""
    layer = keras.layers.Dense(1, name="dense_17")
    layer.build((None, 1))
    local = LocalVariables()
    own = tf.Variable(0.0, name="own")
    local.add(own)
    reduction = GradientReduction(process_set=Ranks(2, included=True))
    sources = [own, layer.kernel, tf.constant(1.0), layer.bias]
    given = [tf.constant(float(index)) for index in range(4)]
    reduced = reduction.reduce(given, sources, "g", local)
    reduction.reduce(given, sources, "g", local, generic_names=True)
    assert [float(gradient) for gradient in reduced] == [0.0, 10.0, 20.0, 30.0]
    assert collectives[0]["tensor_names"] == ("0:dense/kernel", "1:tensor", "2:dense/bias")
    assert collectives[1]["tensor_names"] == ("0:gradient", "1:gradient", "2:gradient")


def test_local_layers_may_be_built_later():
    layer = keras.layers.Dense(2)
    local = LocalVariables()
    local.add_layers(layer)
    assert local.variables() == []
    layer.build((None, 3))
    assert [id(v) for v in local.variables()] == [id(v) for v in layer.weights]
    assert layer.kernel in local
    assert layer.bias.value in local
    assert tf.Variable(0.0) not in local


@pytest.mark.parametrize("layers", [None, [], ()])
def test_no_local_layers(layers):
    """Another rank may have some, so this one takes part in what they agree on."""
    local = LocalVariables()
    assert not local.partial
    local.add_layers(layers)
    assert local.partial
    assert local.keys() == frozenset()


@pytest.mark.parametrize("layers", ["dense", 3, [keras.layers.Dense(1), FIRST], FIRST])
def test_what_is_no_layer_is_refused(layers):
    with pytest.raises(ConfigError, match="must be one or more Keras layers"):
        LocalVariables().add_layers(layers)


@pytest.mark.parametrize("source", ["name", None, [FIRST], np.ones(2)])
def test_what_is_no_variable_is_refused(source):
    with pytest.raises(ConfigError, match=r"must be a keras\.Variable or tf\.Variable"):
        LocalVariables().add(source)


def test_equal_variables_are_not_the_same():
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    assert key_of(a) != key_of(b)
    assert key_of(a) == key_of(a)
