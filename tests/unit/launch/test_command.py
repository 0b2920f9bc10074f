"""Tests of tfdist.launch.command: from words to a plan, without starting it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.launch import command
from tfdist.launch.host import discovery, host
from tfdist.launch.host.host import Host
from tfdist.launch.option import option
from tfdist.launch.run.plan import Plan
from tfdist.launch.start.direct import Direct


def _plan(*words: str, **environment: str) -> tuple[Plan, list[str]]:
    known, user = option.parse(words)
    return command.make_plan(known, user, {"PATH": "/usr/bin:/bin", **environment})


def test_local_plan() -> None:
    plan, _ = _plan("-np", "64", "sh", "-c", "true")
    assert plan.starter.local
    assert plan.starter.hosts == (Host("localhost", 64),)
    assert (plan.start_timeout_s, plan.starter.host_timeout_s) == (option.START_TIMEOUT_S, 30.0)
    assert plan.elsewhere == {}


def test_option_wins_over_environment() -> None:
    variables = {"TFDIST_COMPRESSION": "bf16", "TFDIST_HOST_TIMEOUT": "7"}
    plan, _ = _plan("-np", "1", "--compression", "fp16", "sh", **variables)
    assert plan.environment["TFDIST_COMPRESSION"] == "fp16"
    assert plan.starter.host_timeout_s == 7
    assert _plan("-np", "1", "--host-timeout", "0.5", "sh", **variables)[0].starter.host_timeout_s == 0.5


@pytest.mark.parametrize("how", ["option", "variable"])
def test_modules_of_horovod_are_there_where_they_are_wanted(how: str) -> None:
    words = ("-np", "1", sys.executable, "-m", "horovod.tensorflow.data.compute_worker")
    with pytest.raises(ConfigError, match=r"horovod.tensorflow.data.compute_worker: no such module"):
        _plan(*words)
    _plan("--as-horovod", *words) if how == "option" else _plan(*words, TFDIST_AS_HOROVOD="1")


def test_ranks_say_more_where_the_launcher_does() -> None:
    def level(*words: str, **variables: str) -> str | None:
        return config.read(_plan("-np", "1", *words, "sh", **variables)[0].environment).log_level

    assert (level(), level("--verbose")) == ("warning", "info")
    assert level("--verbose", "--log-level", "ERROR") == "error"
    assert level("--verbose", TFDIST_LOG_LEVEL="debug") == level("--verbose", HOROVOD_LOG_LEVEL="debug") == "debug"


def test_autotuning_is_checked_before_the_start() -> None:
    plan, _ = _plan("-np", "2", "--autotune", "--autotune-log-file", "a.csv", "sh")
    assert plan.environment["TFDIST_AUTOTUNE"] == "1"
    assert plan.environment["TFDIST_AUTOTUNE_LOG"] == "a.csv"
    _plan("-np", "2", "--autotune-log-file", "a.csv", "sh", TFDIST_AUTOTUNE="lossy")
    plan, _ = _plan("-np", "2", "--autotune", "sh", TFDIST_AUTOTUNE="Lossy")
    assert plan.environment["TFDIST_AUTOTUNE"] == "Lossy"
    plan, _ = _plan("-np", "2", "--no-autotune", "sh", TFDIST_AUTOTUNE="lossy")
    assert plan.environment["TFDIST_AUTOTUNE"] == "0"
    with pytest.raises(ConfigError, match=r"--autotune-log-file needs autotuning; add --autotune"):
        _plan("-np", "2", "--autotune-log-file", "a.csv", "sh")
    with pytest.raises(ConfigError, match="TFDIST_AUTOTUNE='2' cannot be used: must be one of 0, 1, lossy"):
        _plan("-np", "2", "sh", TFDIST_AUTOTUNE="2")
    for words, variables in ((["--autotune"], {}), ([], {"TFDIST_AUTOTUNE": "lossy"})):
        with pytest.raises(ConfigError, match=r"same ranks from start to finish.* without --elastic"):
            _plan("-np", "2", "--elastic", *words, "sh", **variables)


def test_marks_need_a_timeline() -> None:
    with pytest.raises(ConfigError, match=r"needs a timeline; add --timeline-filename"):
        _plan("-np", "2", "--timeline-mark-cycles", "sh", HOROVOD_TIMELINE="DYNAMIC")
    plan, _ = _plan("-np", "2", "--timeline-mark-cycles", "sh", TFDIST_TIMELINE="run.json")
    assert plan.environment["TFDIST_TIMELINE_MARK_CYCLES"] == "1"


def test_elastic_is_asked_for_by_option_alone() -> None:
    """A rank of an elastic job, where the variable is set, may start a job of its own. Supervisors set it for ranks."""
    plan, _ = _plan("-np", "2", "sh", TFDIST_ELASTIC="1")
    assert (plan.least, plan.starter.name, plan.environment.get("TFDIST_ELASTIC")) == (None, "mpirun", None)
    plan, _ = _plan("-np", "4", "--min-np", "3", "sh")
    assert (plan.least, plan.starter.name, plan.environment.get("TFDIST_ELASTIC")) == (3, "direct", None)
    assert _plan("-np", "4", "--elastic", "--no-mpi", "sh")[0].starter.name == "direct"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mpi",), "an elastic job runs without MPI; omit --mpi, or --elastic"),
        (("--mpi-args", "--x"), "--mpi-args is for mpirun, but an elastic job runs without MPI; omit it"),
    ],
)
def test_elastic_job_has_no_mpi(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan("-np", "2", "--elastic", *words, "sh")


def test_folder_for_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan, _ = _plan("-np", "2", "--elastic", "--backup-dir", "a/later", "sh", TFDIST_COMMITS_BACKUP="/of/another/job")
    assert plan.backup == str(tmp_path / "a/later")
    assert (tmp_path / "a/later").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "a/later").iterdir()) == []
    assert "TFDIST_COMMITS_BACKUP" not in plan.environment
    assert _plan("-np", "2", "--elastic", "sh")[0].backup == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("file", "not a folder"),
        ("open", "only you may have write access"),
        ("file/new", "cannot be written: .* Use a folder of your own, on a disk that all hosts share"),
        ("/proc/self/fd", "cannot be written: "),
    ],
)
def test_folder_that_no_commit_may_go_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match=f"--backup-dir {given}: .*{message}"):
        _plan("-np", "2", "--elastic", "--backup-dir", given, "sh")


def test_folder_of_other_hosts_is_not_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "is_local", lambda name: False)
    monkeypatch.setattr(host, "address", lambda name: "192.0.2.1")
    there = tmp_path / "there"
    assert _plan("-np", "1", "-H", "a", "--elastic", "--backup-dir", str(there), "x")[0].backup == str(there)
    assert not there.exists()


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setattr(discovery, "LOOK_S", 0.001)

    def make(text: str) -> str:
        path = tmp_path / "find.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(("slots", "start"), [(1, "1 rank"), (2, "2 ranks"), (3, "3 ranks"), (4, ""), (5, "")])
def test_fewer_ranks_than_asked_for_are_told(finder: Callable[[str], str], slots: int, start: str) -> None:
    script = finder(f"echo localhost:{slots}")
    words = ("--elastic",) if slots == 1 else ("--min-np", "2")
    plan, remarks = _plan("-np", "4", *words, "--host-discovery-script", script, "sh")
    assert plan.starter.processes == min(slots, 4)
    expected = (
        f"note: starting {start} instead of -np 4: --host-discovery-script found no more slots (localhost:{slots}). "
        f"--min-np {min(slots, 2)} allows this; more ranks start when it finds more slots"
    )
    assert [remark for remark in remarks if "-np" in remark] == [expected] * bool(start)


def test_empty_list_of_hosts_at_the_start(finder: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    script = finder("echo no credentials >&2")
    words = ["-np", "2", "--elastic", "--elastic-timeout", "0.1", "--host-discovery-script", script, "sh"]
    assert command.main(words) == command.USAGE_ERROR
    waits, refused = capsys.readouterr().err.splitlines()
    why = f"tfdistrun: --host-discovery-script {script}: it printed no host: stdout '', stderr 'no credentials'"
    assert waits == f"{why}; waiting up to 0.1 s for hosts (--elastic-timeout)"
    assert refused == f"{why}, and printed none within 0.1 s (--elastic-timeout)"


def test_interrupted_while_hosts_are_waited_for(
    finder: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "wait_for_hosts", interrupt)
    assert command.main(["-np", "2", "--elastic", "--host-discovery-script", finder("exit 0"), "sh"]) == 130
    assert capsys.readouterr().err == "tfdistrun: interrupted before any rank was started\n"


def test_hostfile_and_remarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "is_local", lambda name: False)
    monkeypatch.setattr(host, "address", {"a": "192.0.2.1", "b": "192.0.2.2"}.__getitem__)
    (tmp_path / "hosts").write_text("a slots=2\nb:2\n")
    plan, remarks = _plan(
        "-np", "3", "--hostfile", str(tmp_path / "hosts"), "-p", "22", "--disable-cache", "only-there"
    )
    assert plan.starter.hosts == (Host("a", 2), Host("b", 1))
    assert not plan.starter.local
    assert plan.elsewhere == {"a": "192.0.2.1", "b": "192.0.2.2"}
    assert plan.starter.ssh.port == 22
    assert plan.command == ("only-there",)
    assert [remark.partition(" ")[0] for remark in remarks] == ["--disable-cache"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-np 1 --hostfile /no/such sh", "tfdistrun: --hostfile /no/such cannot be read"),
        ("-np 1 --stall-check-warning-time-seconds x sh", "tfdistrun: TFDIST_STALL_CHECK_WARNING_TIME='x' cannot"),
        ("-np 1 --stall-check-shutdown-time-seconds 0 sh", "must be more than 0"),
        ("-np 1 --host-timeout never sh", "tfdistrun: TFDIST_HOST_TIMEOUT='never' cannot be used"),
    ],
)
def test_usage_error(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words.split()) == command.USAGE_ERROR
    assert message in capsys.readouterr().err


def test_missing_mpirun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("TFDIST_MPI_HOME", raising=False)
    assert command.main(["--mpi", "-np", "1", "/bin/sh"]) == command.USAGE_ERROR
    assert "no mpirun found next to" in capsys.readouterr().err
    plan, remarks = _plan("-np", "1", "--verbose", "/bin/sh")
    assert isinstance(plan.starter, Direct)
    assert "direct starts the ranks: there is no mpirun next to /nowhere/python or on PATH" in remarks
