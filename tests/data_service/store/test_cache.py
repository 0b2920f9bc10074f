"""The cache: later passes do not run the pipeline again, in this process or the next; what does not fit is refused."""

import logging

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import cache
from tfdist.errors import ConfigError


def drawn(count=5):
    """Other numbers in each pass."""
    return tf.data.Dataset.range(count).map(lambda i: (i, tf.random.uniform([], maxval=1 << 30, dtype=tf.int32)))


def values(dataset):
    return [(int(i), int(number)) for i, number in dataset]


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_later_passes_repeat_the_first(tmp_path, where):
    dataset = cache(drawn(), where if where == "memory" else tmp_path / where)
    first = values(dataset)
    assert values(dataset) == first
    assert values(drawn()) != first


def test_a_folder_serves_later_datasets(tmp_path):
    first = values(cache(drawn(), tmp_path / "a"))
    assert values(cache(drawn(), tmp_path / "a")) == first
    assert values(cache(drawn(), tmp_path / "b")) != first


def test_what_the_cluster_produced_is_kept(caplog):
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        with data_service.Worker(data_service.WorkerConfig(dispatcher.address)):
            with caplog.at_level(logging.WARNING, "tfdist"):
                dataset = cache(data_service.distribute(drawn(), dispatcher.address))
            first = values(dataset)
    assert "12 bytes per element" in caplog.text and "unknown number" in caplog.text
    assert values(dataset) == first  # without a cluster
    assert [i for i, _ in first] == list(range(5))


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_what_does_not_fit_is_refused_beforehand(tmp_path, where):
    huge = tf.data.Dataset.from_tensors(tf.zeros([10**6])).repeat(10**9)
    with pytest.raises(ConfigError, match=rf"cache will take 4e\+03 TB: 1000000000 elements of 4 MB.*in .*{where}"):
        cache(huge, where if where == "memory" else tmp_path / where)
    assert list(tmp_path.iterdir()) == []


def test_an_endless_dataset_is_refused():
    with pytest.raises(ConfigError, match="endless"):
        cache(drawn().repeat())


def test_a_folder_with_something_else_is_refused(tmp_path):
    values(cache(drawn(), tmp_path / "a"))
    with pytest.raises(ConfigError, match=r"contains elements of another type: .*int32"):
        cache(tf.data.Dataset.range(3), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_text("")
    with pytest.raises(ConfigError, match="contains something other than a cache"):
        cache(drawn(), tmp_path / "b")
    with pytest.raises(ConfigError, match="is a file"):
        cache(drawn(), tmp_path / "b" / "c")


def test_a_folder_in_use_is_refused(tmp_path):
    dataset = cache(drawn(), tmp_path / "a")
    iterator = iter(dataset)
    next(iterator)
    with pytest.raises(ConfigError, match="is being written by another process"):
        cache(drawn(), tmp_path / "a")


def as_rank(monkeypatch, rank, size):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(size))


def test_each_rank_has_a_folder_of_its_own(monkeypatch, tmp_path):
    kept = {}
    for rank in range(3):
        as_rank(monkeypatch, rank, 3)
        kept[rank] = values(cache(drawn(3 + rank), tmp_path / "a"))
    assert {path.name for path in (tmp_path / "a").iterdir()} == {f"rank-{rank}-of-3" for rank in range(3)}
    for rank in range(3):
        as_rank(monkeypatch, rank, 3)
        assert values(cache(drawn(3 + rank), tmp_path / "a")) == kept[rank]
    as_rank(monkeypatch, 0, 2)
    assert values(cache(drawn(3), tmp_path / "a")) != kept[0]


def test_the_only_rank_has_the_folder_itself(monkeypatch, tmp_path):
    as_rank(monkeypatch, 0, 1)
    first = values(cache(drawn(), tmp_path / "a"))
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    assert values(cache(drawn(), tmp_path / "a")) == first


def test_a_rank_that_is_not_told_which_it_is_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDIST_LAUNCHED", "1")
    with pytest.raises(ConfigError, match="does not set its rank"):
        cache(drawn(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    values(cache(drawn()))
