"""Tests of function_job: what is refused before anything is started, and the words of the rest."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.launch.function import function_job, session, worker
from tfdist.launch.option import horovod_option, option

NOTHING = dict.fromkeys(inspect.signature(tfdist.run).parameters)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of jobs that would have been started."""
    words: list[list[str]] = []

    def launch(
        given: list[str], arguments: dict[str, str], function: int, setting: session.Setting
    ) -> tuple[int, dict[str, str], dict[int, bytes]]:
        words.append(given)
        return 2, {"error": "not started", "lost": False}, {}

    monkeypatch.setattr(session, "launch", launch)
    return words


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"func": 3}, "func must be a function; received 3"),
        ({"args": 3}, r"args must be a tuple of arguments, as in args=\(1,\); received 3"),
        ({"args": "ab"}, "args must be a tuple of arguments"),
        ({"kwargs": [1]}, r"kwargs must map names to arguments; received \[1\]"),
        ({"kwargs": {1: 2}}, "kwargs must map names"),
        ({"num_proc": 0}, "num_proc must be a whole number of ranks, 1 or more; received 0"),
        ({"num_proc": True}, "num_proc must be a whole number of ranks, 1 or more; received True"),
        ({"num_proc": "2"}, "num_proc must be a whole number of ranks, 1 or more; received '2'"),
        ({"min_num_proc": "1"}, "min_num_proc must be int; received '1'"),
        ({"cooldown_range": 3}, "cooldown_range must be two numbers of seconds; received 3"),
        ({"cooldown_range": (1, "2")}, "cooldown_range must be two numbers of seconds"),
        ({"max_num_proc": 3, "max_np": 2}, "max_num_proc=3 and max_np=2 differ; give only max_num_proc"),
        ({"hosts": ["a:1"]}, r"hosts must be str; received \['a:1'\]"),
        ({"hostfile": 1}, "hostfile must be str or PathLike; received 1"),
        ({"start_timeout": "30"}, "start_timeout must be int or float; received '30'"),
        ({"ssh_port": True}, "ssh_port must be int; received True"),
        ({"network_interfaces": ("eth0",)}, "network_interfaces must be str"),
        ({"mpi_args": ["-x"]}, "mpi_args must be str"),
        ({"executable": 1}, "executable must be the path of a Python interpreter; received 1"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi cannot be combined"),
        ({"args": (threading.Lock(),)}, None),
    ],
)
def test_refused_before_anything_starts(given: dict[str, Any], text: str | None, started: list[Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be pickled" if text is None else f"^tfdist.run: {text}"):
        tfdist.run(**({"func": print} | given))
    assert started == []


def test_words_of_a_plain_call(started: list[list[str]]) -> None:
    with pytest.raises(ConfigError, match="not started"):
        tfdist.run(print)
    assert started == [["-np=1", "--", sys.executable, str(Path(worker.__file__).absolute())]]


def test_words_are_understood_by_tfdistrun(started: list[list[str]]) -> None:
    given: dict[str, Any] = {
        "num_proc": 3,
        "hosts": "a:1,b:2",
        "start_timeout": 2.5,
        "ssh_port": 22,
        "ssh_identity_file": Path("key file"),
        "output_filename": "logs",
        "verbose": True,
        "mpi_args": "-x A --mca b c",
        "network_interfaces": "eth0,eth1",
        "executable": Path("python3.12"),
        "use_gloo": True,
        "disable_cache": True,
    }
    with pytest.raises(ConfigError, match="not started"):
        tfdist.run(print, **given)
    known, command = option.parse(started[0])
    assert (known.num_proc, known.hosts, known.start_timeout, known.ssh_port) == (3, "a:1,b:2", 2.5, 22)
    assert (known.ssh_identity_file, known.output_filename, known.verbose) == ("key file", "logs", True)
    assert known.mpi_args == ("-x", "A", "--mca", "b", "c")
    assert known.network_interfaces == ("eth0", "eth1")
    assert command[0] == "python3.12"
    assert known.starter == "direct"
    assert len(horovod_option.notes(known)) == 1


def test_words_of_an_elastic_job(started: list[list[str]]) -> None:
    given = {"min_num_proc": 2, "max_num_proc": 5, "reset_limit": 0, "cooldown_range": (1, 2.5), "slots": 3}
    with pytest.raises(ConfigError, match="not started"):
        tfdist.run(print, num_proc=4, host_discovery_script=Path("hosts.sh"), **given)
    known, _ = option.parse(started[0])
    assert (known.min_np, known.num_proc, known.max_np, known.reset_limit) == (2, 4, 5, 0)
    assert (known.blacklist_cooldown_range, known.slots_per_host) == ([1, 2.5], 3)
    assert known.host_discovery_script == "hosts.sh"


def test_flags_that_are_false_are_not_given() -> None:
    given = NOTHING | {"num_proc": 2, "verbose": False, "use_mpi": False, "use_gloo": 0, "disable_cache": False}
    assert function_job.option_words(given) == ["-np=2"]
    assert function_job.option_words(given | {"use_mpi": True, "hostfile": "h"}) == ["-np=2", "--hostfile=h", "--mpi"]


def test_deprecated_number(started: list[list[str]]) -> None:
    with pytest.warns(DeprecationWarning, match="use num_proc") as warned, pytest.raises(ConfigError, match="not star"):
        tfdist.run(print, np=2)
    assert [one.filename for one in warned] == [__file__]
    assert started[0][0] == "-np=2"
    with pytest.warns(DeprecationWarning, match="np"), pytest.raises(ConfigError, match="num_proc=3 and np=2 differ"):
        tfdist.run(print, num_proc=3, np=2)


def test_deprecated_interface(started: list[list[str]]) -> None:
    with pytest.warns(DeprecationWarning, match="use network_interfaces") as warned:
        with pytest.raises(ConfigError, match="not star"):
            tfdist.run(print, network_interface="eth0", network_interfaces="eth0")
    assert [one.filename for one in warned] == [__file__]
    assert "--network-interfaces=eth0" in started[0]
    with pytest.warns(DeprecationWarning, match="use"), pytest.raises(ConfigError, match=r"='lo' and .*='eth0' differ"):
        tfdist.run(print, network_interface="eth0", network_interfaces="lo")


def test_on_a_rank_of_another_job(monkeypatch: pytest.MonkeyPatch, started: list[list[str]]) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="cannot be called on a rank of a running job"):
        tfdist.run(print)
    assert started == []


def test_arguments_are_those_of_horovod() -> None:
    """Names and order of horovod.run 0.28, so that positional calls mean the same."""
    expected = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
        "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose "
        "use_gloo use_mpi mpi_args network_interface network_interfaces executable np min_np max_np"
    )
    assert list(NOTHING) == expected.split()


def test_name_is_a_function_whatever_was_imported_before() -> None:
    code = (
        "import tfdist, tfdist.launch.function.worker, tfdist.launch.function.function_job, sys\n"
        "assert callable(tfdist.run)\n"
        "print(sorted({'tensorflow', 'keras', 'numpy', 'mpi4py'} & set(sys.modules)), 'run' in tfdist.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[] True\n", done.stderr
