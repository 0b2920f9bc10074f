"""The data service end to end in one process: every element counted, bad settings named."""

import collections

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.errors import ConfigError

ELEMENTS = 60


def count(workers, sharding, job_name=None):
    """How often each element arrives."""
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        servers = [data_service.Worker(data_service.WorkerConfig(dispatcher.address)) for _ in range(workers)]
        dataset = tf.data.Dataset.range(ELEMENTS).map(lambda x: x * 2)
        distributed = data_service.distribute(dataset, dispatcher.address, sharding=sharding, job_name=job_name)
        counts = collections.Counter(int(element) for element in distributed)
        for server in servers:
            server.stop()
    return counts


@pytest.mark.parametrize("job_name", [None, "job"])
def test_dynamic_delivers_each_element_once(job_name):
    assert count(2, "dynamic", job_name) == collections.Counter(range(0, 2 * ELEMENTS, 2))


def test_off_delivers_everything_from_every_worker():
    assert count(1, "off") == collections.Counter(range(0, 2 * ELEMENTS, 2))


def test_addresses_name_the_host_that_was_given():
    with data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1")) as dispatcher:
        host, _, port = dispatcher.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        with data_service.Worker(data_service.WorkerConfig(dispatcher.address, host="127.0.0.1")) as worker:
            assert worker.address.startswith("127.0.0.1:")
            assert worker.address != "127.0.0.1:0"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: data_service.DispatcherConfig(port=-1), "port must be 0"),
        (lambda: data_service.DispatcherConfig(fault_tolerant=True), "needs a work_dir"),
        (lambda: data_service.WorkerConfig("nowhere"), "HOST:PORT"),
        (lambda: data_service.distribute(tf.data.Dataset.range(1), "h:1", sharding="some"), "off, dynamic"),
        (lambda: data_service.distribute([1], "h:1"), "tf.data.Dataset"),
    ],
)
def test_bad_setting_says_what_is_expected(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
