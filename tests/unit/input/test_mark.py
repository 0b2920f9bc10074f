"""A part is known by what `shard` returned, and by whatever tf.data, Keras or a strategy puts around that."""

import gc

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfdist import data_service
from tfdist.input import mark

numbers = tf.data.Dataset.range


def part(remainder="join"):
    return mark.put(numbers(8).map(lambda number: number + 1), remainder)


def distributed(dataset):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    return strategy.experimental_distribute_dataset(dataset.batch(2))


def always(*element):
    return True


KEEPING = {
    "itself": lambda d: d,
    "prefetch": lambda d: d.prefetch(1),
    "map": lambda d: d.map(tf.square),
    "parallel map": lambda d: d.map(tf.square, num_parallel_calls=2),
    "batch": lambda d: d.batch(2),
    "padded_batch": lambda d: d.padded_batch(2),
    "ragged_batch": lambda d: d.ragged_batch(2),
    "unbatch": lambda d: d.batch(2).unbatch(),
    "rebatch": lambda d: d.batch(2).rebatch(3),
    "with_options": lambda d: d.with_options(tf.data.Options()),
    "take": lambda d: d.take(3),
    "skip": lambda d: d.skip(1),
    "shuffle": lambda d: d.shuffle(4),
    "repeat": lambda d: d.repeat(),
    "cache": lambda d: d.cache(),
    "enumerate": lambda d: d.enumerate(),
    "filter": lambda d: d.filter(always),
    "take_while": lambda d: d.take_while(always),
    "scan": lambda d: d.scan(tf.constant(0, tf.int64), lambda state, number: (state + number, state)),
    "window": lambda d: d.window(2),
    "interleave": lambda d: d.interleave(numbers),
    "parallel interleave": lambda d: d.interleave(numbers, num_parallel_calls=2),
    "flat_map": lambda d: d.flat_map(numbers),
    "group_by_window": lambda d: d.group_by_window(lambda n: n % 2, lambda _, w: w.batch(2), window_size=2),
    "concatenate": lambda d: numbers(2).concatenate(d),
    "zip": lambda d: tf.data.Dataset.zip((numbers(8), d)),
    "zip in a dict": lambda d: tf.data.Dataset.zip({"a": numbers(8), "b": d}),
    "choose_from_datasets": lambda d: tf.data.Dataset.choose_from_datasets([numbers(2), d], numbers(2)),
    "sample_from_datasets": lambda d: tf.data.Dataset.sample_from_datasets([numbers(2), d], seed=1),
    "assert_cardinality": lambda d: d.apply(tf.data.experimental.assert_cardinality(8)),
    "prefetch_to_device": lambda d: d.apply(tf.data.experimental.prefetch_to_device("/cpu:0")),
    "many": lambda d: tf.data.Dataset.zip((d.shuffle(4).map(tf.square), numbers(8))).batch(2).cache().prefetch(1),
    "in a structure": lambda d: ({"x": [d]}, None),
    "adapter of Keras": lambda d: TFDatasetAdapter(d.batch(2)),
    "distributed": distributed,
    "measure_wait": data_service.measure_wait,
    "measure_wait before others": lambda d: data_service.measure_wait(d).batch(2).prefetch(1),
}
LOSING = {
    "generator": lambda d, _: tf.data.Dataset.from_generator(lambda: iter(d), output_signature=d.element_spec),
    "file": lambda d, path: (d.save(str(path)), tf.data.Dataset.load(str(path)))[1],
    "in a function": lambda d, _: numbers(1).flat_map(lambda _: d),
    "arrays": lambda d, _: np.array(list(d.as_numpy_iterator())),
    "nothing": lambda d, _: (None, None),
}


@pytest.mark.parametrize("step", KEEPING)
def test_what_is_made_of_a_part_is_known(step):
    assert mark.of(KEEPING[step](part())) == {"join"}
    assert mark.of(KEEPING[step](numbers(8))) == set()


@pytest.mark.parametrize("step", LOSING)
def test_what_does_not_show_where_it_is_from(step, tmp_path):
    assert mark.of(LOSING[step](part(), tmp_path / "saved")) == set()


def test_several_parts():
    drop, join = part("drop"), part("join")
    assert mark.of(drop) == {"drop"}
    assert mark.of(tf.data.Dataset.zip((drop, join)).batch(2)) == {"drop", "join"}
    assert mark.of({"x": drop.batch(2), "y": join}) == {"drop", "join"}
    assert mark.of(mark.put(numbers(3), "drop", "join")) == {"drop", "join"}


ARRAYS = {
    "array": lambda: np.arange(6.0),
    "view": lambda: np.arange(6.0)[1::2],
    "tensor": lambda: tf.range(6),
    "variable": lambda: tf.Variable([1.0, 2.0]),
    "ragged": lambda: tf.ragged.constant([[1], [2, 3]]),
    "table": lambda: pd.DataFrame({"a": [1, 2]}),
    "column": lambda: pd.Series([1, 2]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_is_known_as_long_as_it_is_the_same(kind):
    array, other = ARRAYS[kind](), ARRAYS[kind]()
    given = (array, {"b": other})
    assert mark.put(given, "join") is given
    assert mark.of((other, None)) == mark.of({"x": array}) == {"join"}
    assert mark.of(ARRAYS[kind]()) == set()


def test_an_array_that_has_gone_takes_its_mark_along():
    array = mark.put(np.zeros(3), "drop")
    key = (id(array), "drop")
    assert key in mark._arrays
    del array
    gc.collect()
    assert key not in mark._arrays
