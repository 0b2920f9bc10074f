"""A cluster that scales by itself, end to end: a trainer that waits gets a worker, one that does not gives it back."""

import collections

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection import wait_report
from tfdist.data_service.trainer import outlook

pytestmark = pytest.mark.slice("data-service")

ELEMENTS = 3000
SLOW_US = 100_000
# As in life, but in less time: the share is of 2 s, and a change may come after less.
PERIOD_S, WINDOW_S = 0.25, 2.0
POLICY = data_service.ScalePolicy(1, 2, add_above=0.6, drain_below=0.1, add_after_s=1.0, drain_after_s=2.0)


@pytest.fixture
def reports(monkeypatch):
    """The service of each report of this process, in their order; services of other tests have threads here too."""
    told = []
    tell = outlook.Reporter.tell

    def count(reporter):
        tell(reporter)
        told.append(reporter._service.grpc)

    monkeypatch.setattr(wait_report, "PERIOD_S", PERIOD_S)
    monkeypatch.setattr(outlook, "_WINDOW_S", WINDOW_S)
    monkeypatch.setattr(outlook.Reporter, "tell", count)
    return told


def slow_until(flag):
    """Elements that take their time on the workers as long as there is no such file."""

    def make(number):
        # The name depends on the element, so that TensorFlow does not look once and for all.
        name = tf.strings.join([str(flag), tf.strings.substr(tf.strings.as_string(number), 0, 0)])
        is_slow = tf.equal(tf.size(tf.io.matching_files(name)), 0)
        variant = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(number)),
            sleep_microseconds=tf.where(is_slow, tf.constant(SLOW_US, tf.int64), 0),
            output_types=[tf.int64],
            output_shapes=[[]],
        )
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))

    return tf.data.Dataset.range(ELEMENTS).flat_map(make)


def test_workers_follow_the_wait_and_nothing_is_lost(reports, tmp_path, capfd, wait_until):
    flag = tmp_path / "fast"
    with data_service.Cluster(workers=1, autoscale=POLICY) as cluster:
        first = cluster.workers[0]
        distributed = data_service.distribute(slow_until(flag), cluster.address, max_outstanding_requests=2)
        elements = iter(data_service.measure_wait(distributed))
        counts = collections.Counter()

        def read():
            counts[int(next(elements))] += 1
            assert counts.total() < ELEMENTS / 2, "nothing has changed"
            return True

        wait_until(lambda: read() and len(cluster.workers) == 2, seconds=90, what="a second worker")
        (added,) = set(cluster.workers) - {first}
        (told,) = cluster.survey().dispatcher.status.trainers
        assert told.share > POLICY.add_above and told.measured_at == "input"

        flag.touch()  # from now on the trainer is the slow one: a step lasts until it has told again
        for _ in range(100):
            read()
            before = reports.count(cluster.address)
            wait_until(lambda: reports.count(cluster.address) > before, seconds=10, what="a report")  # noqa: B023
            if len(cluster.workers) == 1:
                break
        assert cluster.workers == (first,)
        counts.update(int(element) for element in elements)
        cluster.drain(added)  # whom the autoscaler drains: it has delivered what it held
        assert {worker.address: worker.state for worker in cluster.survey().workers}[added] == "drained"
    assert counts == collections.Counter(range(ELEMENTS))
    log = capfd.readouterr().err
    assert "[data-service] 1 -> 2 workers: the trainer waits" in log
    assert "[data-service] 2 -> 1 workers: the trainer waits" in log
