"""What a trainer is told when something is wrong, end to end: an error that says what to do, in time, never a hang."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import http.server
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection import handshake
from tfdist.data_service.trainer import distribute, watch
from tfdist.errors import ConfigError, PeerLostError

# What a bound may be missed by on a busy machine.
MARGIN_S = 5.0
SHORT_S = 2.0
HANDSHAKE_S = 6.0


def outcome(function, within_s):
    """What the function raised or returned; a wait without end fails the test and does not hang it."""
    got = []

    def run():
        try:
            got.append(function())
        except Exception as error:  # noqa: BLE001  (whatever it is, the test tells)
            got.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(within_s)
    assert got, f"no end within {within_s} s"
    return got[0]


def refusal(kind, function, within_s=MARGIN_S):
    """The text of the error of this kind that the function raises in time."""
    error = outcome(function, within_s)
    assert isinstance(error, kind), error
    return str(error)


def numbers(count=20):
    return tf.data.Dataset.range(count)


@pytest.fixture(scope="module")
def cluster():
    """Processes of their own: what a trainer has, and what can be frozen."""
    with data_service.Cluster(workers=1) as made:
        yield made


def pid_of_dispatcher(cluster):
    return cluster.survey().dispatcher.status.pid


def runs(pid):
    """Whether a thread of the process is not stopped."""
    states = (stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat"))
    return any(state != "T" for state in states)


@contextlib.contextmanager
def frozen(pid, wait_until):
    """Stops a process. Its threads run on for some 20 ms after the signal, in which a dispatcher still answers."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not runs(pid), seconds=10, what="the end of all threads' time")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# A wrong address.


@contextlib.contextmanager
def nobody():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def silent():
    """Takes connections, as the kernel does for a program that is frozen, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def website():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def unknown_host():
    yield "no-such-host.invalid:5050"


PLACES = {"nobody": nobody, "silent": silent, "website": website, "unknown host": unknown_host}


@pytest.mark.slice("data-service")
def test_a_wrong_address_is_an_error_within_the_handshake(monkeypatch):
    """All at the same time, because each takes as long as a dispatcher which is just starting gets; here less."""
    assert handshake.DEADLINE_S == 15.0
    shorter = functools.partial(handshake.shake_hands, deadline_s=HANDSHAKE_S)
    monkeypatch.setattr(distribute, "shake_hands", shorter)

    def ask(place):
        with place() as address:
            start = time.monotonic()
            text = refusal(PeerLostError, lambda: data_service.distribute(numbers(), address), HANDSHAKE_S + MARGIN_S)
            return address, text, time.monotonic() - start

    with ThreadPoolExecutor(len(PLACES)) as pool:
        found = dict(zip(PLACES, pool.map(ask, PLACES.values()), strict=True))
    for address, text, seconds in found.values():
        assert f"no data service answers at {address}: tried for " in text
        assert "Check the address and the network" in text
        assert HANDSHAKE_S - 1 < seconds < HANDSHAKE_S + 1


def test_the_address_of_a_worker_is_named_at_once(cluster):
    text = refusal(ConfigError, lambda: data_service.distribute(numbers(), cluster.workers[0]))
    assert f"{cluster.workers[0]} is not a dispatcher" in text and "It may be a worker" in text


# Another version.


@pytest.mark.parametrize(
    ("role", "change"), [("dispatcher", {"tfdist": "0.0.9"}), ("worker", {"tensorflow": "2.16.2"})]
)
def test_another_version_names_the_server_and_both_versions(role, change, monkeypatch, dispatcher, worker_of):
    made = dispatcher if role == "dispatcher" else data_service.Worker
    whole = made.status
    if role == "dispatcher":
        monkeypatch.setattr(dispatcher._control, "source", _source_of(dispatcher, change))
    else:
        monkeypatch.setattr(data_service.Worker, "status", lambda self: dataclasses.replace(whole(self), **change))
        worker_of(dispatcher)
    text = refusal(ConfigError, lambda: data_service.distribute(numbers(), dispatcher.address))
    assert f"the {role} at" in text and next(iter(change.values())) in text
    assert tf.__version__ in text and "Install the same versions on both sides" in text


def _source_of(server, change):
    source = server._control.source
    return dataclasses.replace(source, status=lambda: dataclasses.replace(server.status(), **change))


# A function that raises.


def refuse_fives(number):
    with tf.control_dependencies([tf.debugging.assert_none_equal(number, tf.constant(5, tf.int64), message="a five")]):
        return tf.identity(number)


def with_python(number):
    return tf.py_function(lambda value: value + 1, [number], tf.int64)


def generated():
    return tf.data.Dataset.from_generator(lambda: range(3), output_signature=tf.TensorSpec([], tf.int64))


@pytest.mark.parametrize(
    ("dataset", "texts"),
    [
        (lambda: numbers().map(refuse_fives), ["a five", "failed on that worker", "ignore_errors"]),
        (lambda: numbers().map(lambda x: 10 // x), ["division by zero", "without `distribute`"]),
        (lambda: numbers().map(with_python), ["calls a Python function", "TensorFlow operations"]),
        (generated, ["calls a Python function", "from_generator"]),
    ],
)
def test_an_element_function_that_raises(cluster, dataset, texts):
    distributed = data_service.distribute(dataset(), cluster.address, wait_seconds=SHORT_S * 2)
    text = refusal(tf.errors.InvalidArgumentError, lambda: list(distributed), MARGIN_S * 2)
    for part in (*texts, cluster.address, cluster.workers[0]):
        assert part in text
    assert outcome(lambda: len(list(data_service.distribute(numbers(), cluster.address))), 30) == 20


# An element that is too large.


def test_element_too_large_by_type_is_refused_before_it_is_made(service):
    dataset = numbers().map(lambda x: (x, tf.zeros([500_000, 1000])))
    text = refusal(ConfigError, lambda: data_service.distribute(dataset, service))
    assert "elements of 2000000008 bytes" in text and "at most 2000000000" in text and "fewer rows" in text


@pytest.mark.parametrize("compression", ["AUTO", None])
def test_element_too_large_at_run_time_is_refused_on_the_worker(monkeypatch, cluster, compression):
    """At a smaller limit, which travels with the dataset; the real one is what a message of protobuf holds."""
    monkeypatch.setattr(watch, "LARGEST_ELEMENT_BYTES", 1000)
    dataset = numbers(30).map(lambda x: tf.zeros([x * 50], tf.uint8))
    distributed = data_service.distribute(dataset, cluster.address, compression=compression, wait_seconds=SHORT_S * 2)
    text = refusal(tf.errors.InvalidArgumentError, lambda: list(distributed), MARGIN_S * 2)
    assert "has 1050 bytes; the service carries at most 1000" in text and "fewer rows" in text


# A full disk for the work dir.


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 KiB."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here; the limit on the size of files is tested instead")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(folder):
    file = (folder / "filler").open("wb", buffering=0)
    with file, contextlib.suppress(OSError):
        while file.write(b"x" * 512):
            pass
    assert shutil.disk_usage(folder).free == 0


def test_full_disk_is_named_and_work_resumes_with_room(small_disk):
    work_dir = str(small_disk / "work")
    config = data_service.DispatcherConfig(work_dir=work_dir, fault_tolerant=True)
    with data_service.Dispatcher(config) as dispatcher:
        with data_service.Worker(data_service.WorkerConfig(dispatcher.address, work_dir=work_dir)):
            distributed = data_service.distribute(numbers(10**6), dispatcher.address, wait_seconds=SHORT_S)
            elements = iter(distributed)
            next(elements)
            fill(small_disk)
            for read in (lambda: list(elements), lambda: iter(distributed)):
                text = refusal(tf.errors.ResourceExhaustedError, read, MARGIN_S * 2)
                assert work_dir in text and "No space left" in text and "Free space there" in text
            text = refusal(ConfigError, lambda: data_service.distribute(numbers(7), dispatcher.address))
            assert "did not accept the dataset" in text and work_dir in text and "free space there" in text
            text = refusal(
                ConfigError, lambda: data_service.Dispatcher(data_service.DispatcherConfig(work_dir=work_dir + "2"))
            )
            assert "cannot be used: No space left on device" in text
            (small_disk / "filler").unlink()
            assert outcome(lambda: int(next(iter(distributed))), 30) >= 0


def test_a_journal_that_may_not_grow_is_named(cluster):
    """As a full disk, for whoever may mount none."""
    pid = pid_of_dispatcher(cluster)
    distributed = data_service.distribute(numbers(), cluster.address, wait_seconds=SHORT_S)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        assert "has reached its size limit" in refusal(tf.errors.OpError, lambda: iter(distributed), MARGIN_S * 2)
        text = refusal(ConfigError, lambda: data_service.distribute(numbers(7), cluster.address))
        assert "did not accept the dataset" in text and "File too large" in text
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert outcome(lambda: sorted(map(int, distributed)), 30) == list(range(20))


# A dispatcher that is frozen.


def padded(count):
    """Elements of which few fit on their way."""
    return numbers(count).map(lambda x: (x, tf.zeros([10_000])))


def test_a_pass_does_not_begin_at_a_frozen_dispatcher(cluster, wait_until):
    distributed = data_service.distribute(numbers(), cluster.address, wait_seconds=SHORT_S)
    with frozen(pid_of_dispatcher(cluster), wait_until):
        text = refusal(tf.errors.UnavailableError, lambda: iter(distributed), SHORT_S + MARGIN_S)
        assert f"{cluster.address} accepts connections but does not answer" in text
        assert "tried for 2 s (wait_seconds)" in text
    assert outcome(lambda: sorted(map(int, distributed)), 30) == list(range(20))


@pytest.mark.slice("data-service")
def test_frozen_dispatcher_ends_the_pass_and_its_iterator(cluster, wait_until):
    distributed = data_service.distribute(padded(100_000), cluster.address, wait_seconds=SHORT_S)
    held = [iter(distributed)]
    next(held[0])
    with frozen(pid_of_dispatcher(cluster), wait_until):
        text = refusal(tf.errors.DeadlineExceededError, lambda: list(held[0]), 30)
        assert f"the data service at {cluster.address} delivered no element for 2 s" in text

        def leave():
            held.clear()
            return gc.collect()

        assert isinstance(outcome(leave, SHORT_S + MARGIN_S), int)
    # What was left behind wakes up with the dispatcher, and harms nobody.
    for _ in range(2):
        assert outcome(lambda: len(list(data_service.distribute(numbers(), cluster.address))), 30) == 20


@pytest.mark.parametrize("sharding", ["dynamic", "off"])
def test_restarted_dispatcher_names_what_keeps_its_place(sharding):
    """It has no journal, so it knows nothing of the pass: the worker that asks for data hears so, or the trainer."""
    config = data_service.DispatcherConfig()
    with contextlib.ExitStack() as servers:
        before = servers.enter_context(data_service.Dispatcher(config))
        servers.enter_context(data_service.Worker(data_service.WorkerConfig(str(before.service))))
        endless = iter(data_service.distribute(numbers().repeat(), str(before.service), sharding))
        next(endless)
        before.stop()
        servers.enter_context(data_service.Dispatcher(dataclasses.replace(config, port=before.service.port)))
        text = refusal(tf.errors.NotFoundError, lambda: list(endless), within_s=30)
    assert "Unknown iteration client id" in text or "Iteration id" in text
    assert "--work-dir and --fault-tolerant" in text and "restart training" in text


def test_a_program_that_took_the_dispatchers_place_is_told_apart():
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        distributed = data_service.distribute(numbers(), dispatcher.address, wait_seconds=1)
    with http.server.HTTPServer(("localhost", dispatcher.service.port), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = refusal(tf.errors.UnavailableError, lambda: iter(distributed))
        server.shutdown()
    assert "it is another program" in text


ENDS = """
import gc
import tensorflow as tf
from tfdist import data_service
dispatcher = data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1"))
worker = data_service.Worker(data_service.WorkerConfig(str(dispatcher.service), host="127.0.0.1"))
elements = iter(data_service.distribute(tf.data.Dataset.range(20).repeat(), str(dispatcher.service), wait_seconds=2))
next(elements)
dispatcher.stop()
try:
    list(elements)  # until the worker has none left, and asks the dispatcher for more
except tf.errors.OpError as error:
    print(type(error).__name__)
worker.stop()
del elements, worker, dispatcher
gc.collect()
print("collected")
"""


@pytest.mark.slice("data-service")
def test_a_worker_whose_dispatcher_is_gone_holds_up_nobody(tmp_path):
    """TensorFlow's would wait for an hour where it is destroyed, and all threads of Python with it."""
    done = subprocess.run([sys.executable, "-c", ENDS], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "DeadlineExceededError\ncollected\n"
