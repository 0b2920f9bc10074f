"""The two dataset ops: elements pass unchanged, waits end, ids are noted, errors keep their text."""

import gc
import itertools
import time
from collections import defaultdict

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.trainer import outlook, watch
from tfdist.data_service.trainer.watch import Watch, new_name, watches, watches_of
from tfdist.native import library

BRIEF_SECONDS = 1.0
PATIENCE_SECONDS = 15.0


def watched(dataset, by_id=False):
    made = Watch(new_name("test"), service="", by_id=by_id)
    return made, watch.watch(dataset, made)


def structures():
    numbers = tf.data.Dataset.range(5)
    return {
        "scalar": numbers,
        "tuple of one": numbers.map(lambda x: (x,)),
        "nested": numbers.map(lambda x: {"b": (x, tf.zeros([2, 3])), "a": tf.as_string(x)}),
        "ragged": tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3], []])),
        "sparse": tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense([[1, 0], [0, 2]])),
        "optional shape": tf.data.Dataset.range(7).batch(3),
        "dataset of datasets": numbers.window(2),
    }


@pytest.mark.parametrize("name", structures())
def test_both_ops_keep_elements_structure_and_cardinality(name):
    dataset = structures()[name]
    for changed in (watch.serve(dataset), watched(dataset)[1]):
        assert changed.element_spec == dataset.element_spec
        assert int(changed.cardinality()) == int(dataset.cardinality())
        assert str(list(changed)) == str(list(dataset)) or name == "dataset of datasets"


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_checkpoint_of_an_iterator_passes_through(symbolic, tmp_path):
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    dataset = watched(watch.serve(tf.data.Dataset.range(20).shuffle(5, seed=3)))[1].with_options(options)
    elements = iter(dataset)
    for _ in range(7):
        next(elements)
    path = tf.train.Checkpoint(elements=elements).save(tmp_path / "checkpoint")
    rest = [int(element) for element in elements]
    restored = iter(dataset)
    tf.train.Checkpoint(elements=restored).restore(path)
    assert [int(element) for element in restored] == rest
    assert len(rest) == 13


def test_ids_are_noted_and_taken_out():
    dataset = tf.data.Dataset.range(10).map(lambda x: (x, x * 2))
    made, changed = watched(watch.add_ids(dataset, lambda x, _: x // 2), by_id=True)
    assert changed.element_spec == dataset.element_spec
    assert [(int(x), int(y)) for x, y in changed] == [(x, 2 * x) for x in range(10)]
    newest = library.read_watch(made.name).newest
    assert (newest.elements, newest.ids, newest.distinct_ids, newest.ended) == (10, 10, 5, 1)


def test_a_batch_has_as_many_ids_as_rows():
    dataset = tf.data.Dataset.range(10).batch(4)
    with_ids = watch.add_ids(dataset, lambda rows: rows)
    assert watch.has_ids(with_ids.element_spec) and not watch.has_one_id(with_ids.element_spec)
    made, changed = watched(with_ids, by_id=True)
    assert [element.shape[0] for element in changed] == [4, 4, 2]
    newest = library.read_watch(made.name).newest
    assert (newest.elements, newest.ids, newest.distinct_ids) == (3, 10, 10)


@pytest.mark.parametrize("structure", ["scalar", "tuple of one", "nested"])
def test_ids_leave_the_structure_of_an_element(structure):
    dataset = structures()[structure]
    numbers = iter(range(5))
    with_ids = watch.add_ids(dataset, lambda *_: next(numbers))
    assert watch.has_one_id(with_ids.element_spec)
    assert watched(with_ids, by_id=True)[1].element_spec == dataset.element_spec


def test_an_iterator_that_nobody_reads_is_no_pass():
    made, changed = watched(tf.data.Dataset.range(100))
    iter(changed)
    assert library.read_watch(made.name).newest.number == 0
    elements = iter(changed)
    next(elements)
    reading = library.read_watch(made.name)
    assert (reading.newest.number, reading.newest.ended) == (1, 0)
    assert reading.newest.elements >= 1  # TensorFlow may prefetch


def test_watches_are_found_through_what_stands_behind():
    made, changed = watched(tf.data.Dataset.range(3))
    other, second = watched(tf.data.Dataset.range(3))
    joined = tf.data.Dataset.zip(changed.map(lambda x: x).prefetch(1), second).batch(2)
    assert list(watches_of(joined)) == [made, other]
    assert list(watches_of(tf.data.Dataset.range(1))) == []
    assert watches()[-2:] == (made, other)


def test_names_are_alike_on_ranks_that_watch_more_besides(monkeypatch):
    monkeypatch.setattr(watch, "_numbers", defaultdict(lambda: itertools.count(1)))
    assert [watch.new_name(origin) for origin in ("h:1/own", "h:1/job", "h:1/job")] == [
        "h:1/own#1",
        "h:1/job#1",
        "h:1/job#2",
    ]


def behind(dataset):
    """What a trainer puts behind: threads that wait in its stead."""
    return dataset.map(lambda x: x, num_parallel_calls=2).batch(2).prefetch(2)


@pytest.mark.parametrize("more", [lambda dataset: dataset, behind])
def test_a_wait_without_workers_ends_and_names_what_is_known(more, lonely_dispatcher, monkeypatch):
    monkeypatch.setattr(outlook, "keep", lambda service: None)  # it would look, and leave a note of its own
    distributed = data_service.distribute(tf.data.Dataset.range(3), lonely_dispatcher, wait_seconds=BRIEF_SECONDS)
    library.set_service_note(lonely_dispatcher, "worker host:7 is dead.")
    elements = iter(more(distributed))
    for _ in range(2):  # and it does not begin to wait again
        start = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError) as caught:
            next(elements)
        assert time.monotonic() - start < PATIENCE_SECONDS
        for text in (lonely_dispatcher, "1 s", "worker host:7 is dead.", "tfdist data-service status", "wait_seconds"):
            assert text in str(caught.value)
    library.set_service_note(lonely_dispatcher, "")
    with pytest.raises(tf.errors.DeadlineExceededError, match="No dead worker is known"):
        next(iter(distributed))


def test_an_iterator_that_is_destroyed_while_it_waits_ends(lonely_dispatcher):
    distributed = data_service.distribute(tf.data.Dataset.range(3), lonely_dispatcher, wait_seconds=3600)
    options = tf.data.Options()
    options.experimental_warm_start = True  # its thread waits from the beginning
    gc.collect()  # iterators of other tests, whose dispatchers are gone, take their time
    elements = iter(distributed.prefetch(2).with_options(options))
    start = time.monotonic()
    del elements
    gc.collect()
    assert time.monotonic() - start < PATIENCE_SECONDS


def test_a_pass_does_not_begin_without_its_dispatcher():
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        worker = data_service.Worker(data_service.WorkerConfig(dispatcher.address))
        distributed = data_service.distribute(tf.data.Dataset.range(3), dispatcher.address, wait_seconds=BRIEF_SECONDS)
        assert len(list(distributed)) == 3
    with pytest.raises(tf.errors.UnavailableError, match=f"listens at {dispatcher.address}; tried for 1 s"):
        iter(distributed)
    worker.stop()


def test_an_error_of_the_users_function_keeps_its_text(service):
    def refuse(x):
        tf.debugging.assert_less(x, tf.constant(5, tf.int64), message="the number is too large for me")
        return x

    distributed = data_service.distribute(tf.data.Dataset.range(10).map(refuse), service)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the number is too large for me"):
        list(distributed)


def test_captured_objects_live_as_long_as_the_dataset():
    def with_table():
        keys, values = tf.range(3, dtype=tf.int64), tf.constant([5, 6, 7], tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
        return watched(watch.serve(tf.data.Dataset.range(4).map(table.lookup)))[1]

    dataset = with_table()
    gc.collect()
    assert [int(element) for element in dataset] == [5, 6, 7, -1]
