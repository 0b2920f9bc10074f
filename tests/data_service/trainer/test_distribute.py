"""The data service end to end in one process: every element counted, bad settings named."""

import collections
import contextlib

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection import passes
from tfdist.data_service.server import port
from tfdist.errors import ConfigError
from tfdist.input import mark
from tfdist.input.shard import shard_elements
from tfdist.native import library

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


def part_of_rank():
    """Of data of unknown length, in which `shard` leaves no step by position that is refused anyway."""
    whole = tf.data.Dataset.range(9).filter(lambda number: True)
    return mark.put(shard_elements(whole, 0, 2), "drop")


@pytest.mark.parametrize("job_name", [None, "job"])
def test_dynamic_delivers_each_element_once(job_name):
    assert count(2, "dynamic", job_name) == collections.Counter(range(0, 2 * ELEMENTS, 2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: data_service.DispatcherConfig(fault_tolerant=True), "needs a work_dir"),
        (lambda: data_service.distribute(tf.data.Dataset.range(1), "h:1", sharding="some"), "off, dynamic"),
        (lambda: data_service.distribute([1], "h:1"), "tf.data.Dataset"),
        (lambda: data_service.distribute(tf.data.Dataset.range(1), "h:1", compression="ZIP"), "SNAPPY"),
        (lambda: data_service.distribute(tf.data.Dataset.range(1), "h"), "HOST:PORT"),
        (lambda: data_service.register(tf.data.Dataset.range(1), "h:1", sharding="some"), "off, dynamic"),
        (lambda: data_service.from_id("1000", "h"), "HOST:PORT"),
        (lambda: data_service.distribute(tf.data.Dataset.range(1).cache(), "h:1"), "a cache in memory"),
        (lambda: data_service.register(tf.data.Dataset.range(1), "h:1", sharding="file"), "starts with files"),
        (lambda: data_service.distribute(part_of_rank(), "h:1"), "the dataset comes from tfdist.shard"),
        (lambda: data_service.register(part_of_rank().batch(2), "h:1"), "the dataset comes from tfdist.shard"),
        (lambda: data_service.distribute(part_of_rank(), "h:1", sharding="off", job_name="a"), "and job_name='a'"),
    ],
)
def test_bad_setting_says_what_is_expected(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


FILES = 4


@pytest.fixture
def texts(tmp_path):
    for file in range(FILES):
        lines = (str(number) for number in range(file, ELEMENTS, FILES))
        (tmp_path / f"{file}.txt").write_text("\n".join(lines))
    files = sorted(str(path) for path in tmp_path.iterdir())
    return tf.data.TextLineDataset(files).map(lambda text: tf.strings.to_number(text, tf.int64))


@pytest.fixture
def fixed_workers():
    """A dispatcher that knows its two workers' ports beforehand, as sharding into fixed parts needs."""
    pairs = [port.take(0, None, "127.0.0.1") for _ in range(2)]
    for pair in pairs:
        pair.release()
    addresses = [f"localhost:{pair.port}" for pair in pairs]
    with contextlib.ExitStack() as servers:
        config = data_service.DispatcherConfig(worker_addresses=addresses)
        dispatcher = servers.enter_context(data_service.Dispatcher(config))
        for pair in pairs:
            servers.enter_context(data_service.Worker(data_service.WorkerConfig(dispatcher.address, port=pair.port)))
        yield dispatcher.address


@pytest.mark.parametrize("sharding", ["file", "file_or_data", "data", "hint", "dynamic"])
def test_each_worker_has_its_part(sharding, texts, fixed_workers):
    served = library.read_serving().elements
    shard = tf.data.experimental.SHARD_HINT
    dataset = texts.shard(shard, shard) if sharding == "hint" else texts
    distributed = data_service.distribute(dataset, fixed_workers, sharding, element_id=lambda x: x, expected=ELEMENTS)
    assert sorted(int(element) for element in distributed) == list(range(ELEMENTS))
    result = data_service.visitation(distributed)
    assert (result.lost, result.doubled, result.exact) == (0, 0, True)
    made = {"file": 0, "file_or_data": 0, "data": 2 * ELEMENTS}.get(sharding, ELEMENTS)
    assert library.read_serving().elements - served == made


@pytest.mark.parametrize("sharding", ["file", "file_or_data", "data", "hint"])
def test_fixed_parts_want_a_dispatcher_that_knows_its_workers(sharding, texts, dispatcher, worker_of):
    """And the refused reads leave the service as it was: a worker joins, and one pass reads from both."""
    first = worker_of(dispatcher)
    text = f"sharding='{sharding}' needs .* --workers .*fixed_workers=True.* {dispatcher.address} was started without"
    with pytest.raises(ConfigError, match=text):
        data_service.distribute(texts, dispatcher.address, sharding)
    dataset_id = data_service.register(texts, dispatcher.address)
    with pytest.raises(ConfigError, match=text):
        data_service.from_id(dataset_id, dispatcher.address, sharding)
    second = worker_of(dispatcher)
    found = data_service.survey(dispatcher.address)
    assert {each.address: each.state for each in found.workers} == {first.address: "ready", second.address: "ready"}
    assert len(passes.read(found, dispatcher.service, 5).silent) == 0
    everywhere = data_service.distribute(tf.data.Dataset.range(ELEMENTS), dispatcher.address, "off")
    assert sorted(int(element) for element in everywhere) == sorted([*range(ELEMENTS)] * 2)


def test_dispatcher_without_worker_list_gets_no_static_shards(texts):
    """One of tf.data's own, which has no control port, and may know its workers or not."""
    service = tf.data.experimental.service
    plain = service.DispatchServer(service.DispatcherConfig())
    address = plain.target.rpartition("/")[2]
    with pytest.raises(ConfigError, match=r"knows its workers.* does not report"):
        data_service.distribute(texts, address, "data")
    plain._stop()


def test_sharding_by_file_finds_no_files_behind_our_op(texts, fixed_workers):
    """Why "file" and "file_or_data" are not served: TensorFlow looks through its own ops only."""
    with pytest.raises(tf.errors.NotFoundError, match="TfdistServedDataset"):
        list(data_service.from_id(data_service.register(texts, fixed_workers), fixed_workers, "file"))


def test_a_registered_dataset_is_read_by_its_id(service):
    dataset = tf.data.Dataset.range(ELEMENTS).map(lambda x: (x, x + 1))
    dataset_id = data_service.register(dataset, service, compression=None, element_id=lambda x, _: x)
    trainers = [data_service.from_id(dataset_id, service) for _ in range(2)]
    for trainer in trainers:
        assert trainer.element_spec == dataset.element_spec
        assert sorted(int(x) for x, _ in trainer) == list(range(ELEMENTS))
        result = data_service.visitation(trainer)
        assert (result.expected, result.lost, result.doubled, result.exact) == (ELEMENTS, 0, 0, True)


@pytest.mark.parametrize("step", ["take", "cache", "asserted"])
def test_id_of_what_dynamic_sharding_refuses_is_refused(step, service):
    numbers = tf.data.Dataset.range(9)
    asserted = numbers.apply(tf.data.experimental.assert_cardinality(9))
    dataset = {"take": numbers.take(5), "cache": numbers.cache(), "asserted": asserted}[step]
    with pytest.raises(ConfigError, match="dataset "):
        data_service.register(dataset, service)
    dataset_id = data_service.register(dataset, service, sharding="off")
    with pytest.raises(ConfigError, match=r"was registered with sharding='off'.*received sharding='dynamic'.*Pass sh"):
        data_service.from_id(dataset_id, service)
    read = sorted(int(element) for element in data_service.from_id(dataset_id, service, "off"))
    assert read == list(range(5 if step == "take" else 9))


def test_id_of_what_any_sharding_may_read_is_read_dynamically(service):
    dataset_id = data_service.register(tf.data.Dataset.range(9).map(lambda x: x), service, sharding="off")
    assert sorted(int(element) for element in data_service.from_id(dataset_id, service)) == list(range(9))


def test_an_unknown_id_is_told(service):
    with pytest.raises(ConfigError, match="has no dataset with id 'nothing'"):
        data_service.from_id("nothing", service)


def test_a_job_whose_passes_have_been_read_is_told(tmp_path, worker_of, caplog):
    """A run with an old name gets nothing, and hears so; a first one, one without a name, one in mid-pass do not."""
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(tmp_path), fault_tolerant=True)
    with data_service.Dispatcher(config) as dispatcher:
        worker_of(dispatcher, work_dir=str(tmp_path))
        caplog.clear()

        def begin(job_name, elements=3):
            return data_service.distribute(tf.data.Dataset.range(elements), dispatcher.address, job_name=job_name)

        first, unnamed, other = begin("train"), begin(None), iter(begin("valid", 1 << 40))
        next(other)
        assert [len(list(read)) for read in (first, first, unnamed)] == [3, 3, 3]
        begin("valid")
        begin(None)
        assert caplog.messages == []
        second = begin("train", 5)
        (text,) = caplog.messages
        assert f"passes of job 'train' at {dispatcher.address} that have been read to the end: 2" in text
        assert "Use a new job_name" in text
        assert [len(list(second)) for _ in range(2)] == [0, 0]
        dataset_id = data_service.register(tf.data.Dataset.range(3), dispatcher.address)
        data_service.from_id(dataset_id, dispatcher.address, job_name="train")
        assert caplog.messages == [text, text]


def test_a_cache_gives_several_trainers_the_same_elements(service):
    numbers = tf.data.Dataset.random(seed=1).map(lambda x: x, num_parallel_calls=1)
    dataset_id = data_service.register(numbers, service)
    trainers = [
        data_service.from_id(dataset_id, service, "off", job_name="cached", cross_trainer_cache=name)
        for name in ("one", "two")
    ]
    read = [[int(element) for element in trainer.take(10)] for trainer in trainers]
    assert read[0] == read[1]
    assert len(set(read[0])) == 10


def test_lost_data_is_seen_when_the_last_worker_drains(service):
    """Nobody is left to take the rest; the report says so."""
    distributed = data_service.distribute(tf.data.Dataset.range(500), service, max_outstanding_requests=1)
    elements = iter(distributed)
    next(elements)
    library.set_draining(True)
    try:
        seen = 1 + sum(1 for _ in elements)
    finally:
        library.set_draining(False)
    assert 1 <= seen < 500
    result = data_service.visitation(distributed)
    assert (result.complete, result.seen, result.lost, result.is_clean) == (True, seen, 500 - seen, False)
