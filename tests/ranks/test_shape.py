"""What the shape functions know before anything runs, a line per case; and the shapes that they refuse.

Nothing here runs a collective, so one rank is enough.
"""

import pytest
import tensorflow as tf

import tfdist

pytestmark = pytest.mark.ranks(1)


def reduce_weighted(x, weight):
    return tfdist.grouped_allreduce([x], weight=weight)[0]


def scale_before(x, factor):
    return tfdist.grouped_allreduce([x], prescale_factor=factor)[0]


def scale_after(x, factor):
    return tfdist.grouped_allreduce([x], postscale_factor=factor)[0]


def scatter_scaled(x, factor):
    return tfdist.reducescatter(x, postscale_factor=factor)


def gather_slices(values, indices):
    slices = tfdist.allreduce(tf.IndexedSlices(values, indices, tf.constant([9, 2])))
    return slices.values, slices.indices


def split_with_counts(x, splits):
    return tfdist.alltoall(x, splits)


def broadcast(x):
    return tfdist.broadcast(x, 0)


def all_ops(x, y):
    return [
        *tfdist.grouped_allreduce([x, y]),
        *tfdist.grouped_broadcast([x, y], 0),
        *tfdist.grouped_allgather([x, y]),
        *tfdist.grouped_reducescatter([x, y]),
    ]


def topology():
    return tfdist.rank_op(), tfdist.size_op(), tfdist.local_rank_op(), tfdist.local_size_op(), tfdist.join()


UNKNOWN = None  # in place of a shape: not even the number of dimensions is known

# Function, shapes of its inputs, shapes of its results.
KNOWN = [
    (tfdist.allreduce, [[2, 3]], [[2, 3]]),
    (tfdist.allreduce, [[]], [[]]),
    (tfdist.allreduce, [[0, 4]], [[0, 4]]),
    (tfdist.allreduce, [[None, 3]], [[None, 3]]),
    (tfdist.allreduce, [[None, None]], [[None, None]]),
    (tfdist.allreduce, [UNKNOWN], [UNKNOWN]),
    (reduce_weighted, [[2], []], [[2]]),
    (reduce_weighted, [[2], UNKNOWN], [[2]]),
    (scale_before, [[2], UNKNOWN], [[2]]),
    (scale_after, [[None], []], [[None]]),
    (gather_slices, [[4, 2], [4]], [[None, 2], [None]]),
    (gather_slices, [[None, 2], [None]], [[None, 2], [None]]),
    (tfdist.allgather, [[2, 3]], [[None, 3]]),
    (tfdist.allgather, [[2]], [[None]]),
    (tfdist.allgather, [[]], [[None]]),
    (tfdist.allgather, [[None, 3, None]], [[None, 3, None]]),
    (tfdist.allgather, [UNKNOWN], [UNKNOWN]),
    (broadcast, [[2, 3]], [[2, 3]]),
    (broadcast, [[]], [[]]),
    (broadcast, [[None, 3]], [[None, 3]]),
    (broadcast, [UNKNOWN], [UNKNOWN]),
    (tfdist.alltoall, [[4, 3]], [[None, 3]]),
    (tfdist.alltoall, [[4]], [[None]]),
    (tfdist.alltoall, [[None, None]], [[None, None]]),
    (tfdist.alltoall, [UNKNOWN], [UNKNOWN]),
    (split_with_counts, [[4, 3], [1]], [[None, 3], [None]]),
    (split_with_counts, [[4, 3], [None]], [[None, 3], [None]]),
    (split_with_counts, [UNKNOWN, UNKNOWN], [UNKNOWN, [None]]),
    (tfdist.reducescatter, [[4, 3]], [[None, 3]]),
    (tfdist.reducescatter, [[4]], [[None]]),
    (tfdist.reducescatter, [[None, None, 2]], [[None, None, 2]]),
    (tfdist.reducescatter, [UNKNOWN], [UNKNOWN]),
    (scatter_scaled, [[4, 3], UNKNOWN], [[None, 3]]),
    (all_ops, [[2, 3], [None]], [[2, 3], [None], [2, 3], [None], [None, 3], [None], [None, 3], [None]]),
    (all_ops, [UNKNOWN, [5]], [UNKNOWN, [5], UNKNOWN, [5], UNKNOWN, [None], UNKNOWN, [None]]),
    (topology, [], [[], [], [], [], []]),
]

# Function, shapes of its inputs, what the error says.
REFUSED = [
    (tfdist.alltoall, [[]], "at least rank 1"),
    (split_with_counts, [[4, 3], []], "must be rank 1"),
    (split_with_counts, [[4, 3], [1, 1]], "must be rank 1"),
    (tfdist.reducescatter, [[]], "at least rank 1"),
    (lambda x, y: tfdist.grouped_reducescatter([x, y]), [[2], []], "at least rank 1"),
    (scale_before, [[2], [1]], "must be rank 0"),
    (scale_after, [[2], [2]], "must be rank 0"),
    (scatter_scaled, [[2], [1]], "must be rank 0"),
    (reduce_weighted, [[2], [1]], "must be rank 0"),
]

# In eager mode the kernels look.
REFUSED_EAGERLY = [
    (tfdist.alltoall, [[]], "received a scalar; expected at least one dimension"),
    (split_with_counts, [[4, 3], []], r"received splits of shape \[\]; expected one number of rows for each rank"),
    (split_with_counts, [[4, 3], [1, 1]], r"received splits of shape \[1,1\]"),
    (split_with_counts, [[4, 3], [0]], r"received splits of shape \[0\]"),
    (split_with_counts, [[4, 3], [2]], "received 2 splits; expected 1"),
    (tfdist.reducescatter, [[]], "is a scalar; expected at least one dimension"),
    (lambda x, y: tfdist.grouped_reducescatter([x, y]), [[2], []], "'grouped_reducescatter/1' is a scalar"),
    (scale_before, [[2], [1]], r"prescale_factor has shape \[1\]; expected a scalar"),
    (scale_after, [[2], [2, 2]], r"postscale_factor has shape \[2,2\]; expected a scalar"),
    (scatter_scaled, [[2], [1]], r"postscale_factor has shape \[1\]; expected a scalar"),
    (reduce_weighted, [[2], [1]], r"weight has shape \[1\]; expected a scalar"),
]


def name_of(value):
    return getattr(value, "__name__", str(value)).replace("<lambda>", "group")


def dtypes_of(function):
    """Splits and weights are whole numbers, everything else is not."""
    second = {reduce_weighted: tf.int64, split_with_counts: tf.int64, gather_slices: tf.int32}
    return [tf.float32, second.get(function, tf.float32)]


def trace(function, shapes):
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes_of(function), strict=False)]
    return tf.function(function, autograph=False).get_concrete_function(*specs)


@pytest.mark.parametrize(("function", "inputs", "outputs"), KNOWN, ids=name_of)
def test_known_before_it_runs(world, function, inputs, outputs):
    results = tf.nest.flatten(trace(function, inputs).structured_outputs)
    shapes = [None if result.shape.rank is None else result.shape.as_list() for result in results]
    assert shapes == outputs


@pytest.mark.parametrize(("function", "inputs", "text"), REFUSED, ids=name_of)
def test_refused_before_it_runs(world, function, inputs, text):
    with pytest.raises(ValueError, match=text):
        trace(function, inputs)


@pytest.mark.parametrize(("function", "inputs", "text"), REFUSED_EAGERLY, ids=name_of)
def test_refused_in_eager_mode(world, function, inputs, text):
    tensors = [tf.zeros(shape, dtype) for shape, dtype in zip(inputs, dtypes_of(function), strict=False)]
    with pytest.raises(tfdist.errors.ConfigError, match=text):
        function(*tensors)


def test_refused_when_a_function_runs(world):
    """What only the values tell: splits of a number that is not known while the function is traced."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec(None, tf.int64)])
    def exchange(x, splits):
        return tfdist.alltoall(x, splits)

    for splits in (tf.zeros([0], tf.int64), tf.zeros([1, 1], tf.int64), tf.constant(2, tf.int64)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="received splits of shape"):
            exchange(tf.zeros([2, 2]), splits)
    assert exchange(tf.zeros([2, 2]), tf.constant([2], tf.int64))[0].shape == (2, 2)
