"""The compute job as a command: what it refuses, and one rank from its start to its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.errors import ConfigError
from tfdist.tensorflow.data import compute_service, compute_worker
from tfdist.tensorflow.data.compute_service import TfDataServiceConfig, send_to_data_service, tf_data_service

COMMAND = (sys.executable, "-m", "tfdist.tensorflow.data.compute_worker")
STALE = TfDataServiceConfig(1, 1, "compute", {"lo": [("127.0.0.1", 1)]}, bytes(32), 5)


Start = Callable[..., tuple["subprocess.Popen[bytes]", TfDataServiceConfig]]


@pytest.fixture
def start(tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Start]:
    """Starts a job of one rank where the file of an earlier one stands."""
    path = tmp_path / "compute.json"
    made: list[subprocess.Popen[bytes]] = []

    def begin(*options: str) -> tuple[subprocess.Popen[bytes], TfDataServiceConfig]:
        STALE.write(str(path))
        with (tmp_path / "log").open("w") as log:
            made.append(subprocess.Popen([*COMMAND, str(path), *options], stdout=log, stderr=log))
        wait_until(lambda: TfDataServiceConfig.read(str(path)) != STALE, 60, "the file of this job")
        return made[-1], TfDataServiceConfig.read(str(path))

    yield begin
    for process in made:
        process.kill()
        process.wait()


def test_one_rank_serves_until_it_is_told_to_end(start: Start, tmp_path: Path) -> None:
    process, config = start("--timeout", "45")
    assert (config.dispatchers, config.workers_per_dispatcher, config.timeout) == (1, 1, 45)
    assert config.key != STALE.key
    dataset = send_to_data_service(tf.data.Dataset.range(10).map(lambda number: number * 3), config, 0)
    assert sorted(int(element) for element in dataset) == list(range(0, 30, 3))
    config.compute_client().shutdown()
    assert process.wait(30) == 0, (tmp_path / "log").read_text()
    assert not (tmp_path / "compute.json").exists()


def test_a_dispatcher_that_has_gone_holds_up_no_end(start: Start, tmp_path: Path) -> None:
    """The worker asks it for more of the data until the process ends."""
    process, config = start("--dispatcher-side", "training")
    with tf_data_service(config, 0) as address:
        endless = tf.data.Dataset.range(1 << 40).filter(lambda number: number < 50)
        assert len(list(data_service.distribute(endless, address).take(50))) == 50
    config.compute_client().shutdown()
    assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_a_rank_that_fails_ends_with_an_error(tmp_path: Path) -> None:
    command = [*COMMAND, str(tmp_path / "compute.json"), "--dispatcher-side", "training", "--timeout", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "dispatcher 0 has not registered with the compute service within 0.5 s" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(init=lambda: None, rank=lambda: 0, size=lambda: 4)
    monkeypatch.setattr(compute_service, "runtime", job)
    with pytest.raises(
        ConfigError, match=r"2 dispatchers with 3 workers .* 6 in all; this job has 4.*multiple of --dispatchers"
    ):
        compute_service.compute_worker_fn(TfDataServiceConfig(2, 3, "compute", {}, bytes(16)))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--dispatchers", "0"], "'0' is not a number of dispatchers; expected 1 or more"),
        (["--dispatchers", "two"], "'two' is not a number of dispatchers"),
        (["--dispatcher-side", "both"], "invalid choice: 'both'"),
        (["--timeout", "0"], "'0' is not a number of seconds"),
        (["--workers-per-dispatcher", "2"], "unrecognized arguments"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compute_worker.main(["compute.json", *words])


def test_several_machines_need_a_private_network() -> None:
    compute_worker._check(one_machine=True)
    with pytest.raises(ConfigError, match=r"several machines.*TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1"):
        compute_worker._check(one_machine=False)


def test_the_file_of_another_job_stays(tmp_path: Path) -> None:
    path = tmp_path / "compute.json"
    STALE.write(str(path))
    other = TfDataServiceConfig(1, 1, "compute", {}, bytes(16))
    for made, stays in ((other, True), (STALE, False), (STALE, False)):
        compute_worker._remove(str(path), made)
        assert path.exists() == stays
