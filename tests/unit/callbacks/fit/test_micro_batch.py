"""How a batch is cut into parts, of every kind of tensor."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks.fit.micro_batch import UNLIMITED, MicroBatches
from tfdist.errors import ConfigError


def parts_of(batch, samples, limit):
    parts = MicroBatches(batch, tf.constant(samples, tf.int64), tf.constant(limit, tf.int64))
    return [parts.part(tf.constant(number, tf.int64)) for number in range(int(parts.count))]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 21, 40, UNLIMITED])
def test_parts_are_few_and_as_equal_as_possible(limit):
    for samples in range(1, 41):
        found = parts_of(tf.range(samples), samples, limit)
        assert tf.concat([part for part, _ in found], 0).numpy().tolist() == list(range(samples))
        sizes = [len(part) for part, _ in found]
        assert max(sizes) <= limit
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-samples // limit)
        assert [float(share) for _, share in found] == [size / samples for size in sizes]


def test_every_kind_of_tensor():
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(15), [0, 1, 2, 3, 4, 5])
    dense = np.eye(6, dtype="float32")
    batch = ({"dense": tf.constant(dense), "ragged": ragged, "sparse": tf.sparse.from_dense(dense)}, None, [1] * 0)
    for (x, nothing, empty), rows in zip(
        [part for part, _ in parts_of(batch, 6, 4)], (slice(0, 3), slice(3, 6)), strict=True
    ):
        assert np.array_equal(x["dense"], dense[rows])
        assert x["ragged"].to_list() == ragged.to_list()[rows]
        assert np.array_equal(tf.sparse.to_dense(x["sparse"]), dense[rows])
        assert (nothing, empty) == (None, [])


def test_what_has_no_row_for_each_sample():
    x = tf.zeros([4, 2])
    with pytest.raises(ConfigError, match=r"one row for each sample; received shape \(\). Repeat what"):
        parts_of((x, tf.constant(1.0)), 4, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one row for each sample"):
        parts_of((x, tf.zeros([3])), 4, 2)

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def unknown(y):
        return parts_of((x, y), 4, 4)

    with pytest.raises(ConfigError, match=r"received shape <unknown>.*tf\.ensure_shape"):
        unknown(tf.zeros([4]))
