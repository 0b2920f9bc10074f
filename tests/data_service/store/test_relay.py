"""Elements go through unchanged; whoever fails is heard, and the other one ends."""

import signal
import threading

import pytest
import tensorflow as tf

from tfdist.data_service.store.relay import relay


def numbers(dataset):
    return [int(number) for number in dataset]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 200])
def test_all_elements_in_order(count):
    found = []
    assert relay(tf.data.Dataset.range(count), lambda dataset: found.extend(numbers(dataset))) == count
    assert found == list(range(count))


def test_elements_have_their_types():
    def element(i):
        return {
            "half": tf.cast(i, tf.bfloat16),
            "pair": (tf.cast(i, tf.complex64), tf.strings.as_string(i)),
            "sparse": tf.sparse.from_dense(tf.one_hot(i, 4)),
            "ragged": tf.RaggedTensor.from_row_lengths(tf.range(i), [i]),
            "unknown": tf.zeros([i, 2]),
        }

    made, found = tf.data.Dataset.range(4).map(element), []

    def consume(dataset):
        assert dataset.element_spec == made.element_spec
        found.extend(dataset)

    relay(made, consume)
    for one, other in zip(found, made, strict=True):
        for a, b in zip(*(tf.nest.flatten(each, expand_composites=True) for each in (one, other)), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            tf.debugging.assert_equal(a, b)


def test_a_dataset_that_fails():
    def rows():
        yield from range(30)
        raise LookupError("row 30")

    found = []
    failing = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.int64))
    with pytest.raises(tf.errors.OpError, match="row 30"):
        relay(failing, lambda dataset: found.extend(numbers(dataset)))
    assert found == list(range(30)), "what came before is read to its end"


@pytest.mark.parametrize("taken", [0, 3])
def test_a_reader_that_fails(taken):
    def consume(dataset):
        numbers(dataset.take(taken))
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        relay(tf.data.Dataset.range(10_000), consume)
    assert "tfdist-relay" not in [thread.name for thread in threading.enumerate()]


def test_an_interrupt():
    read = threading.Event()

    def consume(dataset):
        for _ in dataset:
            read.set()

    def interrupt():
        read.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        relay(tf.data.Dataset.range(10**9), consume)
    assert "tfdist-relay" not in [thread.name for thread in threading.enumerate()]
