"""Only the short last batch of an epoch is left out, whatever a map makes of the others."""

import pytest
import tensorflow as tf

from tfdist.input import full_batches, shard

# What rows 0 to 9 in batches of 4 become: 6 rows, 22 rows, and 17 of a batch that was short.
BATCHES = [[1, 2, 2, 3, 3, 3], [number for number in (4, 5, 6, 7) for _ in range(number)]]


def spread(numbers):
    return tf.repeat(numbers, numbers)


def rows(count=10):
    return tf.data.Dataset.range(count)


def listed(dataset):
    return [element.numpy().tolist() for element in dataset]


def asserted(count):
    return tf.data.experimental.assert_cardinality(count)


STEPS = {
    "unknown_length": lambda: rows().filter(lambda _: True).batch(4).map(spread),
    "known_length": lambda: rows().batch(4).map(spread),
    "parallel_map": lambda: rows().batch(4).map(spread, num_parallel_calls=2).prefetch(2),
    "several_maps": lambda: rows().batch(4).map(tf.identity).prefetch(1).map(spread),
    "cache_before": lambda: rows().batch(4).cache().map(spread),
    "asserted": lambda: rows().filter(lambda _: True).batch(4).map(spread).apply(asserted(3)).prefetch(1),
    "options": lambda: rows().batch(4).map(spread).with_options(tf.data.Options()),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("epochs", [1, None], ids=["once", "endless"])
@pytest.mark.parametrize("steps", STEPS)
def test_batches_that_a_map_made_of_any_size(steps, epochs, size):
    dataset = STEPS[steps]()
    if epochs != 1:
        dataset = dataset.repeat(epochs)
    for rank in range(size):
        part = shard.shard_elements(dataset, rank, size)
        assert listed(part.take(4)) == (BATCHES[rank::size] * 4)[: 2 // size * (epochs or 4)][:4]
        known = tf.data.INFINITE_CARDINALITY if epochs is None else 2 // size * epochs
        assert int(part.cardinality()) in (known, tf.data.UNKNOWN_CARDINALITY)


def test_map_after_a_shuffle_of_batches():
    dataset = rows().batch(4).shuffle(3, seed=1).map(spread)
    assert sorted(listed(full_batches.of(dataset))) == BATCHES


def test_random_map_draws_as_before():
    def noisy(numbers):
        return tf.cast(numbers, tf.float32) + tf.random.uniform(tf.shape(numbers), seed=3)

    tf.random.set_seed(1)
    dataset = rows(8).filter(lambda _: True).batch(4).map(noisy)
    assert listed(full_batches.of(dataset)) == listed(dataset)


def test_options_and_parallel_calls_are_kept():
    options = tf.data.Options()
    options.deterministic = False
    dataset = rows().batch(4).with_options(options).map(spread, num_parallel_calls=3).with_options(tf.data.Options())
    full = full_batches.of(dataset)
    assert full.options().deterministic is False
    (parallel,) = (node for node in full_batches.pipeline.nodes(full) if hasattr(node, "_num_parallel_calls"))
    assert int(parallel._num_parallel_calls) == 3


def test_assertion_of_a_wrong_length_still_fails():
    dataset = rows(12).filter(lambda _: True).batch(4).map(spread).apply(asserted(5))
    with pytest.raises(tf.errors.FailedPreconditionError, match="5"):
        listed(full_batches.of(dataset))


def reversed_rows(numbers):
    return tf.reverse(numbers, [0])


# Steps that cannot be taken again on full batches, so that these are known by their rows alone.
HIDING = {
    "cache": lambda dataset: dataset.cache(),
    "take": lambda dataset: dataset.take(20),
    "filter": lambda dataset: dataset.filter(lambda _: True),
    "count_of_epochs": lambda dataset: dataset.repeat(2).apply(asserted(6)),
    "repeated_take": lambda dataset: dataset.repeat(2).take(6),
}


@pytest.mark.parametrize("hiding", HIDING)
def test_maps_that_keep_rows_below_any_step(hiding):
    dataset = HIDING[hiding](rows().batch(4).map(reversed_rows))
    epochs = 2 if hiding in ("count_of_epochs", "repeated_take") else 1
    assert listed(full_batches.of(dataset)) == [[3, 2, 1, 0], [7, 6, 5, 4]] * epochs


@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("order", [1, -1], ids=["larger", "smaller"])
def test_full_batches_are_never_left_out_in_silence(hiding, order):
    """Batches of 3, 12 and 21 rows, or of 21, 12 and 3."""
    dataset = rows(9).filter(lambda _: True).batch(3)
    dataset = dataset.map(lambda numbers: tf.repeat(numbers, numbers if order == 1 else 8 - numbers))
    numbers = r"3\] \[3\] \[12\]" if order == 1 else r"21\] \[12\] \[3\]"
    text = rf"Write \.batch\(3, drop_remainder=True\).*Rows of the first batch, .* of this one:\] \[{numbers}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        listed(full_batches.of(HIDING[hiding](dataset)))


@pytest.mark.parametrize("sizes", [[4, 2, 3], [4, 2, 2], [4, 2, 5]])
def test_repeated_epochs_end_alike(sizes):
    """A short batch has the rows of the one that ended the epoch before, and does not follow a short one."""
    made = tf.data.Dataset.from_tensor_slices(tf.repeat(sizes, 2)[:-1]).batch(2)
    dataset = made.map(lambda sizes: tf.range(sizes[0])).repeat().take(9)
    with pytest.raises(tf.errors.InvalidArgumentError, match="drop_remainder=True"):
        listed(full_batches.of(dataset))
