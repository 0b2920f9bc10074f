"""Horovod's names for a data service: the file, who waits for whom, and which elements each rank gets, counted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.errors import ConfigError, PeerLostError
from tfdist.tensorflow.data import compute_service
from tfdist.tensorflow.data.compute_service import TfDataServiceConfig, send_to_data_service, tf_data_service
from tfdist.tensorflow.data.meeting import ComputeService

KEY = bytes(range(32))
CONFIG = TfDataServiceConfig(2, 3, "compute", {"lo": [("127.0.0.1", 5)], "eth0": [("10.0.0.1", 5)]}, KEY, 30)
ELEMENTS = 30


class Job:
    """A compute job in this process: its workers are started by the test."""

    def __init__(self, stack: contextlib.ExitStack, dispatchers: int, workers: int, side: str, timeout: float) -> None:
        self._stack = stack
        key = secrets.token_bytes(32)
        service = ComputeService(dispatchers, key)
        stack.callback(service.stop)
        self.config = TfDataServiceConfig(dispatchers, workers, side, service.addresses, key, timeout)
        self.client = self.config.compute_client()

    def start_dispatcher(self, number: int) -> str:
        made = self._stack.enter_context(data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1")))
        self.client.register_dispatcher(number, made.address)
        return made.address

    def start_worker(self, dispatcher: str) -> None:
        config = data_service.WorkerConfig(dispatcher, host="127.0.0.1")
        self._stack.enter_context(data_service.Worker(config))


Start = Callable[..., Job]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:
        yield lambda dispatchers=1, workers=1, side="compute", timeout=30.0: Job(
            stack, dispatchers, workers, side, timeout
        )


@pytest.fixture
def job(start: Start) -> Job:
    """One dispatcher with one worker."""
    made = start()
    made.start_worker(made.start_dispatcher(0))
    return made


def numbers_of(dataset: Any) -> list[int]:
    return [int(element) for element in dataset]


def test_configuration_travels_as_json() -> None:
    fields = CONFIG.to_dict()
    assert set(fields) == {"dispatchers", "workers_per_dispatcher", "dispatcher_side", "addresses", "key", "timeout"}
    assert fields["key"] == KEY.hex()
    assert TfDataServiceConfig.from_dict(json.loads(json.dumps(fields))) == CONFIG


def test_the_key_is_not_shown() -> None:
    assert KEY.hex() not in repr(CONFIG)
    assert repr(KEY) not in repr(CONFIG)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dispatchers": 0}, "dispatchers must be 1 or more; received 0"),
        ({"workers_per_dispatcher": -1}, "workers_per_dispatcher must be 1 or more; received -1"),
        ({"dispatcher_side": "both"}, "one of compute, training; received 'both'"),
        ({"key": "00ff"}, "key must have 16 bytes or more; received 2"),
        ({"timeout": float("inf")}, "a finite number of seconds greater than 0; received inf"),
        ({"key": "secret!"}, "not the configuration of a compute service"),
        ({"addresses": {"lo": [["127.0.0.1"]]}}, "not the configuration of a compute service"),
        ({"colour": "red"}, "unexpected keyword argument 'colour'.*Expected dispatchers, workers_per_dispatcher"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TfDataServiceConfig.from_dict(CONFIG.to_dict() | change)


def test_a_missing_field_is_named() -> None:
    fields = CONFIG.to_dict()
    del fields["key"]
    with pytest.raises(ConfigError, match=r"KeyError\('key'\)"):
        TfDataServiceConfig.from_dict(fields)


def test_the_file_is_its_owners_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "compute.json"
    path.write_text("of an earlier job")
    path.chmod(0o666)
    CONFIG.write(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert TfDataServiceConfig.read(str(path)) == CONFIG
    assert [left.name for left in tmp_path.iterdir()] == ["compute.json"]


def test_nothing_is_written_through_a_link_that_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr("os.getpid", lambda: 77)
    (tmp_path / f".{os.uname().nodename}.77.compute.json").symlink_to(victim)
    with pytest.raises(FileExistsError):
        CONFIG.write(str(tmp_path / "compute.json"))
    assert victim.read_text() == "mine"
    assert not (tmp_path / "compute.json").exists()


def test_a_file_may_still_have_to_appear(tmp_path: Path) -> None:
    path = str(tmp_path / "compute.json")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(TfDataServiceConfig.read, path, wait_for_file_creation=True)
        assert not reading.done()
        CONFIG.write(path)
        assert reading.result(30) == CONFIG


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "compute.json"
    for settings, waited in (({}, "0 s"), ({"wait_for_file_creation": True, "timeout": 0.1}, "0.1 s")):
        with pytest.raises(ConfigError, match=f"{path} does not exist after waiting {waited}.*compute_worker {path}"):
            TfDataServiceConfig.read(str(path), **settings)  # type: ignore[arg-type]
    CONFIG.write(str(path))
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"mode 0640.*chmod 600 {path}"):
        TfDataServiceConfig.read(str(path))
    path.chmod(0o600)
    for content in ("{", "[]", '{"key": "00"}'):
        path.write_text(content)
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            TfDataServiceConfig.read(str(path))


def test_each_dispatcher_has_workers_of_its_own(start: Start) -> None:
    """That the workers of dispatcher 0 are there says nothing about dispatcher 1."""
    job = start(dispatchers=2, workers=2, timeout=2.0)
    first, second = job.start_dispatcher(0), job.start_dispatcher(1)
    job.start_worker(first)
    job.start_worker(first)
    job.start_worker(second)
    with tf_data_service(job.config, 0) as address:
        assert address == first
    with pytest.raises(PeerLostError, match=rf"{second} did not have 2 ready workers within 2 s; it has: \S+ ready\."):
        enter(job.config, 1)
    job.start_worker(second)
    with tf_data_service(job.config, 1) as address:
        assert address == second
        assert len(data_service.survey(address).workers) == 2


def test_the_last_survey_has_its_time_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the milliseconds before the deadline a worker that is ready could not say so."""
    given: list[float] = []

    def shake_hands(dispatcher: str, seconds: float) -> Any:
        given.append(seconds)
        return data_service.survey(dispatcher)

    monkeypatch.setattr(compute_service, "shake_hands", shake_hands)
    with pytest.raises(PeerLostError, match=r"did not have 2 ready workers within 0\.5 s; it has: \S+ ready\."):
        enter(dataclasses.replace(job.config, workers_per_dispatcher=2, timeout=0.5), 0)
    assert min(given) >= 2


def enter(config: TfDataServiceConfig, rank: int) -> None:
    with tf_data_service(config, rank):
        pass


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_without_a_dispatcher_is_told(start: Start, rank: int) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} has no dispatcher: there are 2"):
        enter(start(dispatchers=2).config, rank)


def test_one_dispatcher_is_for_all_ranks(job: Job) -> None:
    with tf_data_service(job.config, 0) as first, tf_data_service(job.config, 7) as second:
        assert first == second


def test_training_side_dispatcher_lives_as_long_as_its_context(start: Start) -> None:
    job = start(side="training")
    addresses = []

    def train() -> None:
        with tf_data_service(job.config, 0) as address:
            addresses.append(address)
            with tf_data_service(job.config, 1) as shared:  # rank 1 makes none of its own
                assert shared == address
            dataset = data_service.distribute(tf.data.Dataset.range(ELEMENTS), address)
            assert sorted(numbers_of(dataset)) == list(range(ELEMENTS))
            raise KeyError("in the script")

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(lambda: job.start_worker(job.client.wait_for_dispatcher_registration(0, 30)))
        with pytest.raises(KeyError, match="in the script"):
            train()
        worker.result(30)
    with pytest.raises(PeerLostError):
        data_service.survey(addresses[0], 1.0)


def test_without_reuse_each_rank_gets_all_elements(job: Job) -> None:
    dataset = tf.data.Dataset.range(ELEMENTS)
    parts = [numbers_of(send_to_data_service(dataset, job.config, rank, 2)) for rank in range(2)]
    assert [sorted(part) for part in parts] == [list(range(ELEMENTS))] * 2


def test_with_reuse_the_ranks_share_the_elements(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the method that Horovod gives datasets, for two datasets at the same time: each is a pass of its own."""
    sources = [tf.data.Dataset.range(ELEMENTS), tf.data.Dataset.range(100, 100 + ELEMENTS)]
    ranks = []
    for rank in range(2):
        monkeypatch.setattr(compute_service, "_shared_datasets", iter(range(2)))  # a rank counts for itself
        ranks.append([source.send_to_data_service(job.config, rank, 2, reuse_dataset=True) for source in sources])
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(numbers_of, [*ranks[0], *ranks[1]]))
    for number, first in enumerate((0, 100)):
        assert sorted(parts[number] + parts[2 + number]) == list(range(first, first + ELEMENTS))


def test_in_turns_each_rank_gets_every_other_element(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_service, "_job_name", lambda: "turns")
    endless = tf.data.Dataset.range(ELEMENTS).repeat()
    ranks = [
        send_to_data_service(endless, job.config, rank, 2, reuse_dataset=True, round_robin=True) for rank in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda dataset: numbers_of(dataset.take(ELEMENTS // 2)), ranks))
    assert parts == [list(range(0, ELEMENTS, 2)), list(range(1, ELEMENTS, 2))]


def test_shared_pass_names_differ_by_dataset_and_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_service, "broadcast_object", lambda own, name: f"{own[:0]}of rank 0")
    monkeypatch.setattr(compute_service.runtime, "is_initialized", lambda: True)
    monkeypatch.setattr(compute_service, "_shared_datasets", iter(range(2)))
    monkeypatch.setattr(compute_service, "_run", [])
    assert [compute_service._job_name() for _ in range(2)] == ["of rank 0-0", "of rank 0-1"]


@pytest.mark.parametrize(
    ("change", "settings", "text"),
    [
        ({"dispatcher_side": "training"}, {}, "Use `with tf_data_service"),
        ({}, {"size": 1}, "received rank=1, size=1"),
        ({"dispatchers": 1}, {"round_robin": True, "size": 2}, "received reuse_dataset=False, size=2, dispatchers=1"),
        ({"dispatchers": 1}, {"round_robin": True, "reuse_dataset": True}, "size=None"),
        ({}, {"round_robin": True, "reuse_dataset": True, "size": 2}, "dispatchers=2"),
    ],
)
def test_what_cannot_be_honoured_is_refused(change: dict[str, Any], settings: dict[str, Any], text: str) -> None:
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ConfigError, match=text):
        tf.data.Dataset.range(1).send_to_data_service(config, 1, **settings)


@pytest.mark.parametrize("allowed", [False, True])
def test_ports_are_opened_to_others_only_where_somebody_says_so(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    settings = SimpleNamespace(data_service_private_network=allowed)
    monkeypatch.setattr(compute_service.config, "read", lambda: settings)
    assert compute_service._own_host(SimpleNamespace(host="127.0.0.1")) == "127.0.0.1"  # type: ignore[arg-type]
    client: Any = SimpleNamespace(host="10.0.0.1")
    if allowed:
        assert compute_service._own_host(client) == "10.0.0.1"
    else:
        with pytest.raises(ConfigError, match=r"server at 10\.0\.0\.1 .*TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1"):
            compute_service._own_host(client)
