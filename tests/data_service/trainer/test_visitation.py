"""The report says what was lost and doubled, exactly with ids and as far as counting tells without."""

import dataclasses
import logging

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import combine, distribute, from_id, measure_wait, register, visitation
from tfdist.data_service.trainer import watch
from tfdist.data_service.trainer.visitation import ended_since, log_faults, merged, newest_passes, report
from tfdist.data_service.trainer.watch import Watch
from tfdist.errors import ConfigError
from tfdist.native import library


def read(elements, distinct=None, ended=True, number=1):
    distinct = elements if distinct is None else distinct
    return library.Pass(number=number, elements=elements, ids=elements, distinct_ids=distinct, id_bytes=8, ended=ended)


@pytest.mark.parametrize(
    ("watched", "reading", "lost", "doubled"),
    [
        (Watch("w", "s:1", expected=10), read(10), 0, 0),
        (Watch("w", "s:1", expected=10), read(7), 3, 0),
        (Watch("w", "s:1", expected=10), read(12), 0, 2),
        (Watch("w", "s:1", expected=10), read(4, ended=False), None, None),
        (Watch("w", "s:1"), read(10), None, None),
        (Watch("w", "s:1", expected=10, shared=True), read(5), None, None),
        (Watch("w", "s:1", expected=10, by_id=True), read(10, distinct=8), 2, 2),
        (Watch("w", "s:1", expected=10, by_id=True), read(4, distinct=3, ended=False), None, 1),
        (Watch("w", "s:1", by_id=True), read(10, distinct=8), None, 2),
        (Watch("w", "s:1", expected=10, by_id=True, shared=True), read(5, distinct=4), None, 1),
        (Watch("w", "s:1", expected=10, by_id=True, repeats=True), read(20, distinct=9), 1, 11),
        (Watch("w", "s:1", expected=10, gathered=True), read(10), 0, 0),
        (Watch("w", "s:1", expected=10, gathered=True), read(11), 0, None),
        (Watch("w", "s:1", expected=10, gathered=True), read(7), 3, 0),
        (Watch("w", "s:1", expected=10, gathered=True, by_id=True), read(11, distinct=10), 0, 1),
    ],
)
def test_lost_and_doubled(watched, reading, lost, doubled):
    result = report(watched, reading)
    assert (result.lost, result.doubled, result.exact) == (lost, doubled, watched.by_id)
    assert result.seen == reading.elements
    wrongly_doubled = doubled if not watched.repeats else 0
    assert result.is_clean == (not lost and not wrongly_doubled)


def test_text_of_a_report():
    exact = report(Watch("host:1/7#1", "host:1", expected=12000, by_id=True), read(11803, number=3))
    assert str(exact) == ("host:1/7#1, pass 3: 12,000 expected, 11,803 seen, 197 lost, 0 doubled (counted by id)")
    counted = report(Watch("host:1/7#1", "host:1", shared=True), read(2, ended=False))
    facts = ("unknown expected, 2 seen, unknown lost", "without ids", "not read to the end", "part of a shared pass")
    assert all(fact in str(counted) for fact in facts)


def test_a_pass_is_reported_by_its_ids(service):
    dataset = tf.data.Dataset.range(40).map(lambda x: (x, x % 30))
    distributed = distribute(dataset, service, element_id=lambda _, y: y)
    assert visitation(distributed).pass_number == 0
    elements = iter(distributed)
    next(elements)
    begun = visitation(distributed)  # TensorFlow reads ahead
    assert not begun.complete and 1 <= begun.seen < 40
    for _ in elements:
        pass
    result = visitation(distributed.map(lambda x, y: x).batch(2))
    assert (result.expected, result.seen, result.lost, result.doubled) == (40, 40, 10, 10)
    assert (result.complete, result.exact, result.pass_number) == (True, True, 1)
    assert len(list(distributed)) == 40
    assert visitation(distributed).pass_number == 2


def test_rows_of_batches_are_counted_by_their_ids(service):
    dataset = tf.data.Dataset.range(10).batch(4)
    distributed = distribute(dataset, service, element_id=lambda rows: rows, expected=11)
    assert len(list(distributed)) == 3
    result = visitation(distributed)
    assert (result.seen, result.lost, result.doubled) == (10, 1, 0)
    unknown = distribute(dataset, service, element_id=lambda rows: rows)
    assert len(list(unknown)) == 3
    assert (visitation(unknown).expected, visitation(unknown).lost) == (None, None)


SHORT = "each worker makes or drops its own short last batch"


def test_short_batches_of_each_worker_are_not_doubled(service_of_two, caplog):
    before = newest_passes()
    whole = tf.data.Dataset.range(100)
    for batched in (whole.batch(10), whole.padded_batch(10), whole.batch(10, num_parallel_calls=2)):
        distributed = distribute(batched, service_of_two)
        rows = [int(row) for batch in distributed for row in batch]
        assert sorted(rows) == list(range(100))
        found = visitation(distributed)
        assert found.expected == 10 and found.lost == 0 and found.is_clean and found.short_batches
        assert found.doubled == (0 if found.seen == 10 else None)
        assert (SHORT in str(found)) == (found.seen != 10)
    with caplog.at_level(logging.WARNING, "tfdist"):
        log_faults(ended_since(before))
    assert caplog.records == []


def test_a_pass_is_known_behind_what_measures_the_wait(service):
    distributed = distribute(tf.data.Dataset.range(9), service)
    measured = measure_wait(distributed.prefetch(1))
    assert len(list(measured)) == 9
    assert visitation(measured) == visitation(distributed) and visitation(measured).seen == 9


def test_missing_batch_is_reported_lost_with_other_causes():
    few = report(Watch("w", "s:1", expected=10, gathered=True), read(9))
    assert few.lost == 1 and not few.is_clean
    assert str(few).endswith(f"10 expected, 9 seen, 1 lost, 0 doubled (counted without ids; {SHORT})")
    assert SHORT not in str(report(Watch("w", "s:1", expected=10), read(9)))


def test_what_a_trainer_knows_of_batches(service):
    numbers = tf.data.Dataset.range(9)
    datasets = [
        (distribute(numbers, service), False),
        (distribute(numbers.batch(4), service), True),
        (distribute(numbers.batch(4), service, element_id=lambda rows: rows, expected=9), False),
        (from_id(register(numbers, service), service), True),  # of which it does not know the steps
    ]
    for distributed, expected in datasets:
        assert visitation(distributed).short_batches == expected


def test_trainers_of_one_job_add_their_reports(service):
    parts = [distribute(tf.data.Dataset.range(30), service, job_name="parts") for _ in range(2)]
    first, second = (iter(part) for part in parts)
    seen = [int(next(first)), int(next(second))]
    seen += [int(element) for element in first] + [int(element) for element in second]
    assert sorted(seen) == list(range(30))
    reports = [visitation(part) for part in parts]
    assert all(one.shared and one.lost is None for one in reports)
    together = combine(reports)
    assert (together.seen, together.lost, together.doubled, together.shared) == (30, 0, 0, False)
    short = combine([dataclasses.replace(reports[0], seen=1, doubled=1), dataclasses.replace(reports[1], seen=27)])
    assert (short.lost, short.doubled) == (3, 1)
    with pytest.raises(ConfigError, match="same number"):
        combine([reports[0], dataclasses.replace(reports[1], expected=3)])
    with pytest.raises(ConfigError, match="one or more"):
        combine([])


def test_short_batches_of_a_shared_pass_are_not_doubled():
    parts = [report(Watch("w", "s:1", expected=10, shared=True, gathered=True), read(seen)) for seen in (5, 6)]
    together = combine(parts)
    assert (together.seen, together.lost, together.doubled) == (11, 0, None) and together.is_clean
    without = [dataclasses.replace(part, short_batches=False) for part in parts]
    assert combine(without).doubled == 1


def test_a_dataset_from_elsewhere_has_no_report():
    with pytest.raises(ConfigError, match="does not read from a data service"):
        visitation(data_service.measure_wait(tf.data.Dataset.range(3)))


def test_only_what_went_wrong_since_then_is_logged(caplog):
    def make(expected):
        watched = Watch(watch.new_name("logged"), "logged:1", expected=expected)
        return watched, watch.watch(tf.data.Dataset.range(5), watched)

    good, bad, old = make(5), make(6), make(7)
    list(old[1])
    before = newest_passes()
    list(good[1])
    list(bad[1])
    with caplog.at_level(logging.WARNING, "tfdist"):
        log_faults(ended_since(before))
    (record,) = caplog.records
    assert f"{bad[0].name}, pass 1: 6 expected, 5 seen, 1 lost, 0 doubled" in record.getMessage()
    assert ended_since(newest_passes()) == []


NAMES = ("whole", "part", "later", "own")


def test_ranks_of_one_pass_report_together(caplog):
    """Neither rank alone knows what is missing; of a pass that one has not ended nobody does."""
    whole, part, later, own = (Watch(name, "s:1", expected=10, shared=name != "own") for name in NAMES)
    first = [report(whole, read(5)), report(part, read(5)), report(own, read(9)), report(later, read(1))]
    second = [report(part, read(4)), report(whole, read(5)), report(own, read(10))]
    with caplog.at_level(logging.WARNING, "tfdist"):
        log_faults(merged([first, second]))
    (record,) = caplog.records
    assert "part, pass 1: 10 expected, 9 seen, 1 lost" in record.getMessage()
