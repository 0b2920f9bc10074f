"""The command by its words: what it refuses, and a service that is started, looked at, drained and ended by it."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from tfdist import data_service
from tfdist.command.main import main as tfdist
from tfdist.data_service import command
from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.survey import Server, Survey
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.data_service.server.port import take
from tfdist.errors import ConfigError

COMMAND = (sys.executable, "-m", "tfdist.command", "data-service")
KEY = b"0123456789abcdef0123456789abcdef"


def run(*words):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)


@pytest.fixture
def start(tmp_path):
    """Starts a part of the command in the background; its log is a file."""
    made = []

    def begin(name, *words):
        log = (tmp_path / f"{name}.log").open("w")
        made.append(subprocess.Popen([*COMMAND, *words], stderr=log, stdout=log, stdin=subprocess.DEVNULL))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


def key_in(path, key):
    path.write_bytes(key)
    path.chmod(0o600)
    return path


@pytest.fixture
def key_file(tmp_path):
    return key_in(tmp_path / "key", KEY)


@pytest.fixture
def wrong_key_file(tmp_path):
    return key_in(tmp_path / "wrong", KEY[::-1])


def check_what_the_worker_was_given(status, shown):
    """--tags west,big --cores 1, and no dataset."""
    assert status["tags"] == ["west", "big"]
    assert len(os.sched_getaffinity(status["pid"])) == 1
    line = shown.splitlines()[2]
    assert " of 1 " in line and "west,big" in line
    assert shown.splitlines()[-1] == "no dataset is being read"


def test_a_service_from_its_start_to_its_end(start, tmp_path, key_file, wrong_key_file, wait_until):
    pair = take(0, None, "")
    pair.release()
    service = f"127.0.0.1:{pair.port}"
    work_dir = str(tmp_path / "work")
    common = ("--host", "127.0.0.1", "--work-dir", work_dir)
    dispatcher = start("dispatcher", "dispatcher", *common, "--port", str(pair.port), "--fault-tolerant")
    words = ("--dispatcher", service, "--key-file", str(key_file), "--tags", "west,big", "--cores", "1")
    worker = start("worker", "worker", *common, *words)
    wait_until(lambda: "ready at" in (tmp_path / "worker.log").read_text(), seconds=90, what="the worker")

    told = json.loads(run("status", service, "--json").stdout)
    assert [item["state"] for item in (told["dispatcher"], *told["workers"])] == ["ready", "ready"]
    address = told["workers"][0]["address"]
    shown = run("status", service)
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[2].split()[1:3] == [address, "ready"]
    check_what_the_worker_was_given(told["workers"][0]["status"], shown.stdout)

    advised = json.loads(run("advise", service, "--json", "--seconds", "0.1").stdout)
    assert (advised["verdict"], advised["trainers"], advised["loads"][0]["worker"]) == ("unknown", [], address)

    refused = run("drain", address, "--key-file", str(wrong_key_file))
    assert refused.returncode == 1 and "do both sides have the same key file?" in refused.stderr
    assert worker.poll() is None
    assert run("drain", address, "--key-file", str(key_file)).returncode == 0
    assert worker.wait(30) == 0
    assert run("status", service).stdout.splitlines()[2].split()[2] == "drained"

    dispatcher.send_signal(signal.SIGTERM)
    assert dispatcher.wait(20) == 0
    assert "does not answer" in run("status", service).stderr


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
@pytest.mark.parametrize("part", [["dispatcher"], ["worker", "--dispatcher", "127.0.0.1:1"]])
def test_a_taken_port_is_an_error_before_anything_starts(monkeypatch, part, option):
    monkeypatch.setattr(command, "serve", lambda *_: pytest.fail("started"))
    pair = take(0, None, "")
    with pair.listener, pytest.raises(ConfigError, match=f"port {pair.control_port} cannot be used"):
        command.main([*part, option, str(pair.control_port)])
    pair.close()


def test_open_ports_need_a_word(monkeypatch, capsys):
    served = []
    monkeypatch.setattr(command, "serve", lambda role, config, *_: served.append((role, config["insecure"])) or 0)
    monkeypatch.setattr(command.socket, "if_nameindex", lambda: [(1, "lo"), (2, "far0")])
    assert tfdist(["data-service", "dispatcher", "--host", "node1"]) == 2
    text = capsys.readouterr().err
    assert "far0" in text and "--insecure" in text and "TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1" in text
    assert tfdist(["data-service", "worker", "--dispatcher", "a:1", "--host", "node1"]) == 2
    assert served == []
    assert tfdist(["data-service", "dispatcher", "--host", "node1", "--insecure"]) == 0
    assert tfdist(["data-service", "dispatcher"]) == 0
    monkeypatch.setenv("TFDIST_DATA_SERVICE_PRIVATE_NETWORK", "1")
    assert tfdist(["data-service", "worker", "--dispatcher", "a:1", "--host", "node1"]) == 0
    monkeypatch.delenv("TFDIST_DATA_SERVICE_PRIVATE_NETWORK")
    monkeypatch.setattr(command.socket, "if_nameindex", lambda: [(1, "lo")])
    assert tfdist(["data-service", "dispatcher", "--host", "node1"]) == 0
    assert served == [("dispatcher", True), ("dispatcher", False), ("worker", True), ("dispatcher", False)]


def test_the_service_may_come_from_the_environment(monkeypatch):
    served = []
    monkeypatch.setattr(command, "serve", lambda role, config, *_: served.append(config["dispatcher"]) or 0)
    with pytest.raises(ConfigError, match="no data service given"):
        command.main(["worker"])
    monkeypatch.setenv("TFDIST_DATA_SERVICE", "node:5050")
    assert command.main(["worker"]) == 0
    assert command.main(["worker", "--dispatcher", "other:5050"]) == 0
    assert served == ["node:5050", "other:5050"]


@pytest.mark.parametrize("limit", [[], ["--restarts", "0"], ["--restarts", "3"]])
def test_a_dispatcher_is_restarted_only_with_a_journal(monkeypatch, tmp_path, limit):
    policies = []
    monkeypatch.setattr(command, "serve", lambda role, config, policy, seconds: policies.append(policy.limit) or 0)
    assert command.main(["dispatcher", *limit]) == 0
    assert command.main(["dispatcher", "--fault-tolerant", "--work-dir", str(tmp_path), *limit]) == 0
    assert policies == [0, int(limit[1]) if limit else 5]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "PART"),
        (["king"], "king"),
        (["worker", "--dispatcher", "nowhere"], "HOST:PORT"),
        (["worker", "--dispatcher", "a:1", "--drain-timeout", "0"], "more than 0"),
        (["worker", "--dispatcher", "a:1", "--key-file", "none"], "cannot be read"),
        (["worker", "--dispatcher", "a:1", "--tags", "a,,b"], "a tag must be 1 to 64 letters"),
        (["worker", "--dispatcher", "a:1", "--tags", "a,Colocated"], "trainers would not read from this one"),
        (["worker", "--dispatcher", "a:1", "--cores", "0"], "not a number of cores"),
        (["worker", "--dispatcher", "a:1", "--cores", "4096"], "but this process may use"),
        (["worker", "--dispatcher", "a:1", "--cores", "x"], "not a number of cores"),
        (["dispatcher", "--port", "x"], "not a port"),
        (["dispatcher", "--restarts", "-1"], "0 to 1000"),
        (["dispatcher", "--fault-tolerant"], "work_dir"),
        (["status"], "no data service given"),
        (["advise"], "no data service given"),
        (["advise", "a:1", "--seconds", "0"], "more than 0"),
        (["drain", "a:1"], "--key-file"),
        (["dispatcher", "--por", "1"], "--por"),
    ],
)
def test_bad_words_say_what_is_expected(words, text, capsys):
    assert tfdist(["data-service", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("part", [[], ["dispatcher"], ["worker"], ["status"], ["advise"], ["drain"]])
def test_help_teaches(part, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([*part, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 400


def test_advice_is_of_what_happens_between_two_looks(monkeypatch, capsys):
    """Two seconds by the clock, in which the worker works for 1.9."""
    looks, clock = iter(surveys(busy=(10.0, 11.9), share=0.5)), [100.0]
    monkeypatch.setattr(command, "survey", lambda service, timeout_s: next(looks))
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(command.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    assert command.main(["advise", "node:5050", "--seconds", "2"]) == 0
    text = capsys.readouterr().out
    assert "node:7:ab  50.0%" in text and "w:1     ready  95.0%" in text
    assert "2 workers would end the waiting" in text and "1 run now" in text


def test_a_dispatcher_that_tells_nothing_gives_no_advice(monkeypatch, capsys):
    found = Survey("node:5050", Server("node:5050", "unknown", None, "no answer"), ())
    monkeypatch.setattr(command, "survey", lambda service, timeout_s: found)
    assert tfdist(["data-service", "advise", "node:5050", "--seconds", "0.001"]) == 1
    assert "does not report which trainers wait: no answer" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["advise", "--seconds", "0.001"]])
def test_dispatcher_asked_at_another_port_fails(words, capsys):
    with data_service.Dispatcher(data_service.DispatcherConfig(control_port=0)) as dispatcher:
        assert tfdist(["data-service", *words, dispatcher.address]) == 1
        said = capsys.readouterr()
        assert f"write {dispatcher.address}/CONTROL" in said.out + said.err
        assert tfdist(["data-service", *words, str(dispatcher.service)]) == 0


@pytest.mark.parametrize("part", ["dispatcher", "worker", "status", "advise", "drain"])
def test_help_tells_how_another_control_port_is_written(part, capsys):
    with pytest.raises(SystemExit):
        command.main([part, "--help"])
    assert "HOST:PORT/CONTROL" in " ".join(capsys.readouterr().out.split())


def surveys(busy, share):
    made = Status("dispatcher", "node:5050", 5051, "1", "2", "3", 4, 5.0, "ready")
    dispatcher = dataclasses.replace(made, trainers=(TrainerWait("node:7:ab", share, "input"),))
    for seconds in busy:
        worker = dataclasses.replace(made, role="worker", address="w:1", counters={"busy_seconds_total": seconds})
        yield Survey("node:5050", Server("node:5050", "ready", dispatcher), (Server("w:1", "ready", worker),))


def test_a_drain_of_nobody_is_named(key_file, capsys):
    pair = take(0, None, "127.0.0.1")
    pair.release()
    assert command.main(["drain", f"127.0.0.1:{pair.port}", "--key-file", str(key_file)]) == 1
    said = capsys.readouterr().err
    assert "the drain request did not reach" in said and f"write 127.0.0.1:{pair.port}/CONTROL" in said
