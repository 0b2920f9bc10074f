"""Batches that differ have other digests, whatever they are made of; equal ones have the same."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks.fit import data_digest

LABELS = tf.constant([0.0, 1.0])


def ragged(last):
    return tf.RaggedTensor.from_row_lengths([1, 2, last], [1, 2])


def sparse(place):
    return tf.SparseTensor([[0, 0], [1, place]], [5.0, 6.0], [2, 4])


@pytest.mark.parametrize(
    ("batch", "other"),
    [
        (tf.constant([1.0, 2.0]), tf.constant([2.0, 1.0])),
        (tf.constant(["a", "b"]), tf.constant(["a", "c"])),
        (tf.constant([["a"], ["b"]]), tf.constant([["b"], ["a"]])),
        (ragged(3), ragged(4)),
        (tf.RaggedTensor.from_row_lengths(["a", "b"], [1, 1]), tf.RaggedTensor.from_row_lengths(["a", "b"], [0, 2])),
        (sparse(1), sparse(2)),
        (tf.constant([True, False]), tf.constant([True, True])),
        (tf.constant([1 + 2j]), tf.constant([2 + 2j])),
        (
            {"image": tf.zeros([2, 9]), "text": tf.constant(["a"])},
            {"image": tf.zeros([2, 9]), "text": tf.constant(["b"])},
        ),
    ],
)
def test_other_batches_have_other_digests(batch, other):
    first, same, second = (float(data_digest.digest((x, LABELS), compiled=False)) for x in (batch, batch, other))
    assert first == same
    assert first != second


def test_text_in_a_step_that_xla_compiles():
    texts = [(tf.constant([word]), LABELS) for word in ("a", "b")]
    assert len({float(data_digest.digest(text, compiled=True)) for text in texts}) == 1


def test_nothing_to_look_at_equals_nothing():
    assert np.isnan(data_digest.digest(tf.constant(["a"]), compiled=True))


def test_no_advice_to_do_what_was_done():
    advice = "dataset = tfdist.shard(dataset)"
    assert advice in data_digest.complaint(3, sharded=False)
    assert advice not in data_digest.complaint(3, sharded=True)
    assert "although it was split by tfdist.shard" in data_digest.complaint(3, sharded=True)
