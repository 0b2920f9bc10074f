"""The two servers, in this process."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection import survey
from tfdist.data_service.inspection.control_client import fetch, request
from tfdist.data_service.server import server as server_module
from tfdist.data_service.server.drain_request import HEADER, compose
from tfdist.data_service.server.journal import retirement
from tfdist.data_service.server.journal.journal import files
from tfdist.data_service.server.journal.retirement import LEAVING_FILE
from tfdist.data_service.server.metrics import HELP
from tfdist.data_service.server.port import take
from tfdist.data_service.server.work_dir import TOKEN_FILE
from tfdist.errors import BuildError, ConfigError, PeerLostError


def ask(server, path):
    return request(server.service, "GET", path, 5)


def test_both_answer_on_the_port_above(dispatcher, worker_of):
    worker = worker_of(dispatcher)
    for server in (dispatcher, worker):
        assert server.service.control_port == server.service.port + 1
        assert ask(server, "/healthz") == (200, b"alive\n")
        assert ask(server, "/readyz") == (200, b"ready\n")
        assert b"tfdist_data_service_ready" in ask(server, "/metrics")[1]
    assert fetch(dispatcher.service, 5).role == "dispatcher"
    assert fetch(worker.service, 5).role == "worker"


def test_a_worker_without_its_dispatcher_is_not_ready(dispatcher, worker_of):
    worker = worker_of(dispatcher)
    dispatcher.stop()
    code, text = ask(worker, "/readyz")
    assert code == http.client.SERVICE_UNAVAILABLE
    assert b"does not answer" in text


def test_a_taken_port_is_an_error(dispatcher, worker_of):
    with pytest.raises(ConfigError, match=f"port {dispatcher.service.port} cannot be used"):
        data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1", port=dispatcher.service.port))
    with pytest.raises(ConfigError, match=f"port {dispatcher.service.control_port} cannot be used"):
        worker_of(dispatcher, control_port=dispatcher.service.control_port)


def test_a_server_without_ops_leaves_no_port_taken(dispatcher, monkeypatch):
    port = dispatcher.service.port
    dispatcher.stop()
    config = data_service.DispatcherConfig(host="127.0.0.1", port=port)

    def refuse():
        raise BuildError("no ops for this TensorFlow")

    with monkeypatch.context() as patch:
        patch.setattr(server_module.adapter, "ops", refuse)
        with pytest.raises(BuildError, match="no ops"):
            data_service.Dispatcher(config)
    with data_service.Dispatcher(config) as again:
        assert ask(again, "/readyz")[0] == http.client.OK


def test_a_control_port_of_ones_own(worker_of):
    with data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1", control_port=0)) as dispatcher:
        assert ask(dispatcher, "/readyz")[0] == http.client.OK
        worker = worker_of(dispatcher)
        assert ask(worker, "/readyz")[0] == http.client.OK


def test_no_dispatcher_is_an_error_in_time(dispatcher, worker_of):
    dispatcher.stop()
    with pytest.raises(PeerLostError, match=f"no data service answers at {dispatcher.address}"):
        worker_of(dispatcher, dispatcher_timeout_s=1)


def test_dispatcher_without_a_ledger_leaves_no_port(tmp_path):
    (tmp_path / LEAVING_FILE).write_text("[")
    pair = take(0, None, "")
    pair.release()
    config = data_service.DispatcherConfig(host="127.0.0.1", port=pair.port, work_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=f"{LEAVING_FILE} cannot be read"):
        data_service.Dispatcher(config)
    for port in (pair.port, pair.port + 1):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_a_worker_starts_beside_many_without_asking_them(monkeypatch, dispatcher, worker_of):
    """It needs the dispatcher alone: else N workers that start together ask N x N times."""
    worker_of(dispatcher)
    asked = []
    fetched = survey.fetch
    monkeypatch.setattr(survey, "fetch", lambda address, *rest: asked.append(address) or fetched(address, *rest))
    monkeypatch.setattr(retirement, "survey", lambda *_: pytest.fail("asked by the dispatcher"))
    dispatcher._caretaker.stop()
    worker_of(dispatcher)
    assert set(asked) == {dispatcher.service}


@pytest.mark.parametrize(("named", "told"), [(True, 0), (False, 1)])
def test_a_work_dir_that_is_not_compared_is_said(caplog, tmp_path, worker_of, named, told):
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(tmp_path))
    with data_service.Dispatcher(config) as dispatcher:
        worker_of(dispatcher, work_dir=str(tmp_path) if named else None)
    assert sum("this worker sets none" in record.message for record in caplog.records) == told


def test_a_server_that_did_not_start_leaves_no_port(monkeypatch, dispatcher, worker_of):
    def refuse(port):
        ports.append(port)
        raise ConfigError("no filter")

    ports = []
    monkeypatch.setattr(server_module.loopback, "close_off", refuse)
    with pytest.raises(ConfigError, match="no filter"):
        worker_of(dispatcher)
    monkeypatch.undo()
    for port in (ports[0], ports[0] + 1):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_the_same_work_dir_is_needed(tmp_path, worker_of):
    here, there = tmp_path / "here", tmp_path / "there"
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(here))
    with data_service.Dispatcher(config) as dispatcher:
        worker = worker_of(dispatcher, work_dir=str(here))
        assert worker.status().work_dir_token == (here / TOKEN_FILE).read_text()
        there.mkdir()
        (there / TOKEN_FILE).write_text("another")
        with pytest.raises(ConfigError, match="is not the dispatcher's"):
            worker_of(dispatcher, work_dir=str(there))


def test_a_dispatcher_without_work_dir_is_named(dispatcher, worker_of, tmp_path):
    with pytest.raises(ConfigError, match="its dispatcher has none"):
        worker_of(dispatcher, work_dir=str(tmp_path))


def test_dispatcher_is_written_with_its_control_port(tmp_path):
    config = data_service.DispatcherConfig(control_port=0, work_dir=str(tmp_path))
    with data_service.Dispatcher(config) as made:
        remedy = (
            f"does not report its status: .*does not answer.*; if its --metrics-port .* write {made.address}/CONTROL"
        )
        with pytest.raises(ConfigError, match=remedy):
            data_service.Worker(data_service.WorkerConfig(made.address, work_dir=str(tmp_path)))
        with data_service.Worker(data_service.WorkerConfig(str(made.service), work_dir=str(tmp_path))) as worker:
            assert worker.status().state == "ready"


def test_another_version_is_refused(monkeypatch, dispatcher, worker_of):
    monkeypatch.setattr(server_module, "__version__", "0.0.1")
    with pytest.raises(ConfigError, match=r"the dispatcher at .* has tfdist 0\.0\.1"):
        worker_of(dispatcher)


def test_a_drain_delivers_what_the_worker_holds(dispatcher, worker_of, wait_until):
    worker_of(dispatcher)
    leaving = worker_of(dispatcher)
    released = threading.Event()
    got = []

    def train():
        dataset = data_service.distribute(tf.data.Dataset.range(60), dispatcher.address)
        for element in dataset:
            got.append(int(element))
            released.wait(30)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    wait_until(lambda: len(got) == 1, what="the first element")
    said = []
    draining = threading.Thread(target=lambda: said.append(leaving.drain(60)), daemon=True)
    draining.start()
    wait_until(lambda: fetch(leaving.service, 5).state == "draining", what="the drain")
    assert ask(leaving, "/readyz") == (503, b"draining\n")
    assert dispatcher.status().leaving == {}  # it still holds elements
    released.set()
    thread.join(60)
    draining.join(60)
    assert dispatcher.status().leaving == {leaving.address: leaving.status().started}
    assert sorted(got) == list(range(60))
    assert said == [""]


def test_a_drain_that_does_not_end_in_time_says_so(dispatcher, worker_of):
    worker = worker_of(dispatcher)
    iterator = iter(data_service.distribute(tf.data.Dataset.range(10**9), dispatcher.address))
    next(iterator)
    assert "1 tasks" in worker.drain(2)
    del iterator


def test_a_drain_ends_when_nobody_has_read_for_long(worker_of):
    """Endless data never runs out: the job goes when its last trainer has gone."""
    config = data_service.DispatcherConfig(host="127.0.0.1", unread_timeout_s=0.2)
    with data_service.Dispatcher(config) as dispatcher:
        worker = worker_of(dispatcher)
        iterator = iter(data_service.distribute(tf.data.Dataset.range(10).repeat(), dispatcher.address))
        next(iterator)
        assert "1 tasks" in worker.drain(1)  # a trainer that only pauses is not gone
        del iterator
        assert worker.drain(30) == ""


def test_a_drain_without_dispatcher_says_so(monkeypatch, dispatcher, worker_of):
    monkeypatch.setattr(server_module, "_FAREWELL_S", 0.5)
    worker = worker_of(dispatcher)
    dispatcher.stop()
    assert "has not recorded" in worker.drain(5)


def test_a_request_with_the_key_drains(dispatcher, worker_of, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    key.chmod(0o600)
    worker = worker_of(dispatcher, key_file=str(key))
    body, proof = compose(key.read_bytes(), worker.address, worker.status().started)
    assert not worker.wait_for_request_to_drain(0)
    code, text = request(worker.service, "POST", "/drain", 5, body, **{HEADER.replace("-", "_"): proof})
    assert (code, text) == (202, b"drains\n")
    assert worker.wait_for_request_to_drain(5)


def test_counters_come_from_the_meter(dispatcher):
    class Meter:
        def __init__(self, tasks):
            self.tasks, self.drained, self.ticked = tasks, False, threading.Event()

        def counters(self):
            return {"tasks": self.tasks(), "elements_total": 7}

        def drain(self):
            self.drained = True

        def tick(self):
            self.ticked.set()

    made = []

    def meter(tasks):
        made.append(Meter(tasks))
        return made[0]

    with data_service.Worker(data_service.WorkerConfig(dispatcher.address, host="127.0.0.1"), meter) as worker:
        assert fetch(worker.service, 5).counters == {"tasks": 0, "elements_total": 7}
        assert made[0].ticked.wait(30)
        assert worker.drain(30) == ""
        assert made[0].drained


@pytest.mark.parametrize(
    ("settings", "told"), [({"host": "127.0.0.1"}, 0), ({"host": "127.0.0.1", "insecure": True}, 1)]
)
def test_open_ports_are_said(caplog, settings, told):
    with data_service.Dispatcher(data_service.DispatcherConfig(**settings)):
        assert sum("listens on every interface" in record.message for record in caplog.records) == told


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"port": 70000}, "port must be 0"),
        ({"control_port": -1}, "control_port must be 0"),
        ({"port": 5050, "control_port": 5050}, "must differ"),
        ({"port": 65535}, "no port above"),
    ],
)
def test_bad_ports_say_what_is_expected(settings, text):
    with pytest.raises(ConfigError, match=text):
        data_service.DispatcherConfig(**settings)
    with pytest.raises(ConfigError, match=text):
        data_service.WorkerConfig("h:1", **settings)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_wait_needs_an_end(seconds):
    with pytest.raises(ConfigError, match="finite number of seconds"):
        data_service.WorkerConfig("h:1", dispatcher_timeout_s=seconds)
    with pytest.raises(ConfigError, match=r"unread_timeout_s must be a finite number of seconds"):
        data_service.DispatcherConfig(unread_timeout_s=seconds)


def test_tags_are_shown_and_told_to_tensorflow(tmp_path, worker_of):
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(tmp_path), fault_tolerant=True)
    with data_service.Dispatcher(config) as dispatcher:
        worker, other = worker_of(dispatcher, tags=("west", "big.disk")), worker_of(dispatcher)
        assert fetch(worker.service, 5).tags == ("west", "big.disk")
        assert fetch(other.service, 5).tags == ()
        (written,) = (path.read_bytes() for path in files(str(tmp_path)))
        assert [written.count(tag) for tag in (b"west", b"big.disk")] == [1, 1]


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ("west", "received the string 'west'"),
        (("a", "b c"), "'b c'"),
        (("",), "received ''"),
        (("a", "a"), "must be unique"),
    ],
)
def test_bad_tags_say_what_is_expected(tags, text):
    with pytest.raises(ConfigError, match=text):
        data_service.WorkerConfig("h:1", tags=tags)


@pytest.mark.parametrize("cores", [0, -1])
def test_a_worker_needs_a_core(cores):
    with pytest.raises(ConfigError, match="1 or more"):
        data_service.WorkerConfig("h:1", cores=cores)


def test_cores_are_refused_where_tensorflow_runs_already(dispatcher, worker_of):
    before = os.sched_getaffinity(0)
    tf.constant(1)
    with pytest.raises(ConfigError, match="before this process uses TensorFlow"):
        worker_of(dispatcher, cores=1)
    with pytest.raises(ConfigError, match="but this process may use"):
        worker_of(dispatcher, cores=len(before) + 1)
    assert os.sched_getaffinity(0) == before


LIMITED = """
import json, os, sys
from tfdist import data_service
with data_service.Worker(data_service.WorkerConfig(sys.argv[1], cores=1)):
    import tensorflow as tf
    tf.data.Dataset.range(9).map(lambda number: number, num_parallel_calls=tf.data.AUTOTUNE).reduce(
        tf.constant(0, tf.int64), lambda total, number: total + number
    )
    masks = {tuple(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}
    threads = tf.config.threading
    numbers = [threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads()]
    print(json.dumps([sorted(map(list, masks)), numbers]), flush=True)
    os._exit(0)
"""


def test_a_worker_with_cores_has_all_its_threads_on_them(dispatcher):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(dispatcher.service)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    masks, numbers = json.loads(done.stdout)
    assert len(masks) == 1 and len(masks[0]) == 1
    assert numbers == [1, 1]


def test_a_dispatcher_tells_the_size_of_its_journal(tmp_path, dispatcher, worker_of):
    assert "journal_bytes" not in fetch(dispatcher.service, 5).counters
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(tmp_path), fault_tolerant=True)
    with data_service.Dispatcher(config) as kept:
        assert fetch(kept.service, 5).counters["journal_bytes"] == 0
        worker_of(kept)
        counters = fetch(kept.service, 5).counters
        assert counters["journal_bytes"] == sum(path.stat().st_size for path in files(str(tmp_path))) > 0
        assert counters["cpu_seconds_total"] > 0
        assert set(counters) <= set(HELP)
