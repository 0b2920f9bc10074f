"""Steps by position are refused under dynamic sharding, and only there and only those."""

import pytest
import tensorflow as tf

from tfdist.data_service.trainer.position import check_dynamic, gathers
from tfdist.errors import ConfigError

NUMBERS = tf.data.Dataset.range(30)
REFUSED = {
    "take": NUMBERS.take(3),
    "skip": NUMBERS.skip(3).map(lambda x: x + 1),
    "shard": NUMBERS.shard(2, 0).batch(4),
    "zip": tf.data.Dataset.zip((NUMBERS, NUMBERS)).prefetch(2),
    "enumerate": NUMBERS.enumerate(),
    "choose_from_datasets": tf.data.Dataset.choose_from_datasets([NUMBERS, NUMBERS], tf.data.Dataset.range(2)),
    "take_while": NUMBERS.take_while(lambda x: x < 9).batch(4),
    "scan": NUMBERS.scan(tf.constant(0, tf.int64), lambda state, x: (state + x, state)),
    "counter": tf.data.Dataset.counter().map(lambda x: x + 1),
    "unique": NUMBERS.map(lambda x: x % 3).unique(),
    "window": NUMBERS.window(3, shift=1).flat_map(lambda window: window.batch(3)),
    "stride": NUMBERS.window(3, stride=2),
}
TAKEN = {
    "map": NUMBERS.map(lambda x: x + 1).batch(4).prefetch(2),
    "shuffle": NUMBERS.shuffle(10).repeat(2),
    "pairs": tf.data.Dataset.from_tensor_slices((tf.range(4), tf.range(4))),
    "concatenate": NUMBERS.concatenate(NUMBERS),
    "sample": tf.data.Dataset.sample_from_datasets([NUMBERS, NUMBERS], seed=1),
    "window": NUMBERS.window(3).flat_map(lambda window: window.batch(3)),
    "inside of an element": NUMBERS.interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(3).take(2)),
}


@pytest.mark.parametrize("step", REFUSED)
def test_a_step_by_position_is_named(step):
    with pytest.raises(ConfigError, match=f"dataset has a `.*{step}.*every worker counts"):
        check_dynamic(REFUSED[step])


@pytest.mark.parametrize("step", TAKEN)
def test_other_steps_are_taken(step):
    check_dynamic(TAKEN[step])


def test_the_advice_fits_the_step():
    with pytest.raises(ConfigError, match="use the same job_name"):
        check_dynamic(REFUSED["shard"])
    with pytest.raises(ConfigError, match="Put `take` after `distribute`"):
        check_dynamic(REFUSED["take"])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (NUMBERS.map(lambda x: x + 1).shuffle(3).repeat(2), False),
        (NUMBERS.interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(3).batch(2)), False),
        (NUMBERS.batch(4), True),
        (NUMBERS.batch(4, num_parallel_calls=2).map(lambda x: x + 1).prefetch(1), True),
        (NUMBERS.padded_batch(4), True),
        (NUMBERS.ragged_batch(4), True),
        (NUMBERS.batch(4).rebatch(3), True),
        (NUMBERS.window(4), True),
    ],
)
def test_steps_that_put_elements_together_are_found(dataset, expected):
    assert gathers(dataset) == expected
