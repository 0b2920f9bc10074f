"""Ranks that others start, as torchrun and TF_CONFIG do, and what `tfdistrun` tells scripts of other frameworks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SUMS = """
import os, sys
import tfdist
tfdist.init()
assert tfdist.gloo_enabled()
gathered = tfdist.allgather_object((tfdist.rank(), tfdist.local_rank(), tfdist.local_size()))
child = f"import tfdist; tfdist.init(); print('child', tfdist.size())"
import subprocess
said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout.strip()
print(tfdist.rank(), tfdist.size(), gathered, said, flush=True)
"""
DEADLINE_S = 120


def free_port() -> int:
    """Below those that the kernel gives to connections, which could take it before it is used."""
    for port in random.sample(range(12_000, 20_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")


def run_all(folder: Path, environments: list[Mapping[str, str]], script: str = SUMS) -> list[tuple[int, str, str]]:
    """Runs the script once in each environment, at the same time; returns status, output and errors of each."""
    (folder / "rank.py").write_text(script)
    shared = os.environ | {"XDG_CACHE_HOME": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    started = [
        subprocess.Popen(
            [sys.executable, "rank.py"],
            cwd=folder,
            env={**shared, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    try:
        said = [each.communicate(timeout=DEADLINE_S) for each in started]
    finally:
        for each in started:
            each.kill()
    return [(each.returncode, *words) for each, words in zip(started, said, strict=True)]


def torch(rank: int, size: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in (place | meeting).items()}


def test_torchrun(tmp_path: Path) -> None:
    port = free_port()
    done = run_all(tmp_path, [torch(rank, 3, port) for rank in range(3)])
    everybody = [(rank, rank, 3) for rank in range(3)]
    assert [code for code, _, _ in done] == [0, 0, 0], done
    assert [out for _, out, _ in done] == [f"{rank} 3 {everybody} child 1\n" for rank in range(3)]


def test_tf_config(tmp_path: Path) -> None:
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    tasks = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}} for rank in range(2)]
    done = run_all(tmp_path, [{"TF_CONFIG": json.dumps(task)} for task in tasks])
    assert [out for _, out, _ in done] == [f"{rank} 2 [(0, 0, 2), (1, 1, 2)] child 1\n" for rank in range(2)], done


def test_tf_config_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    ((code, _, err),) = run_all(tmp_path, [{"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {}}'}])
    assert code == 1
    assert "ConfigError: TF_CONFIG has no task ''" in err


def test_failing_rank_is_named_on_the_others(tmp_path: Path) -> None:
    port = free_port()
    script = "import os, tfdist\ntfdist.init()\nif tfdist.rank() == 1: os.abort()\ntfdist.barrier()\n"
    done = run_all(tmp_path, [torch(rank, 2, port) for rank in range(2)], script)
    assert [code for code, _, _ in done] == [1, -6]
    assert "lost its connection to rank 1 (host " in done[0][2]


SESSION = """
import os
import tensorflow as tf
import tfdist.tensorflow as hvd
v1 = tf.compat.v1
v1.disable_eager_execution()
hvd.init()
value = v1.get_variable("value", initializer=[1.0])
step = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(tf.reduce_sum(value))
with v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
    session.run(step)
    if hvd.rank() == 1:
        os.abort()
    session.run(step)
"""


def test_a_monitored_session_does_not_begin_anew_after_a_loss(tmp_path: Path) -> None:
    """It would for ever: nobody ends these ranks, and there is no new one."""
    port = free_port()
    done = run_all(tmp_path, [torch(rank, 2, port) for rank in range(2)], SESSION)
    assert [code for code, _, _ in done] == [1, -6]
    assert "UnknownError" in done[0][2] and "lost its connection to rank 1 (host " in done[0][2]


def test_ranks_of_horovodrun_do_not_train_alone(tmp_path: Path) -> None:
    place = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo"}
    ((code, _, err),) = run_all(tmp_path, [place], "import tfdist\ntfdist.init()\n")
    assert code == 1
    assert "ConfigError: this process is rank 0 of 2 of horovodrun" in err and "tfdistrun -np 4 python" in err


@pytest.mark.starter("direct", "mpi")
def test_scripts_of_other_frameworks_find_their_place(launch: Any) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
    names += [f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")]
    launch.script(f"import json\nprint(json.dumps({{name: os.environ[name] for name in {names}}}))")
    done = launch.run("-np", "2", "python", "rank.py", variables={"MASTER_ADDR": "elsewhere", "RANK": "7"})
    assert done.code == 0, done.stderr
    told = [json.loads(line.partition("] ")[2]) for line in sorted(done.stdout.splitlines())]
    port = told[0]["MASTER_PORT"]
    assert [
        (each["RANK"], each["WORLD_SIZE"], each["LOCAL_RANK"], each["KERAS_DISTRIBUTION_PROCESS_ID"]) for each in told
    ] == [("0", "2", "0", "0"), ("1", "2", "1", "1")]
    assert {(each["MASTER_ADDR"], each["KERAS_DISTRIBUTION_JOB_ADDRESSES"]) for each in told} == {
        ("127.0.0.1", f"127.0.0.1:{port}")
    }
    with socket.create_server(("127.0.0.1", int(port))):
        pass


@pytest.mark.starter("direct")
def test_communicator_of_mpi4py_is_refused(launch: Any) -> None:
    launch.script("import types, tfdist\ntfdist.init(comm=types.SimpleNamespace(py2f=lambda: 7))\n")
    done = launch.run("-np", "2", "python", "rank.py")
    assert done.code == 1
    assert "this job was started without MPI" in done.stderr
    assert "tfdistrun --mpi" in done.stderr


@pytest.mark.starter("direct")
def test_lists_of_ranks_train_apart(launch: Any) -> None:
    launch.script(
        "import tfdist\n"
        "tfdist.init(comm=[2, 0] if rank in (0, 2) else [1])\n"
        "print(tfdist.rank(), tfdist.size(), float(tfdist.allreduce(float(rank), op=tfdist.Sum)), flush=True)\n"
    )
    done = launch.run("-np", "3", "python", "rank.py", variables={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert sorted(done.stdout.splitlines()) == ["[0] 1 2 2.0", "[1] 0 1 1.0", "[2] 0 2 2.0"], done.stderr
    launch.script("import tfdist\ntfdist.init(comm=[rank, 7])\n")
    done = launch.run("-np", "2", "python", "rank.py")
    assert "expected distinct ranks of the job, including this one" in done.stderr


@pytest.mark.starter("direct")
def test_rank_that_never_calls_init_is_named(launch: Any) -> None:
    launch.script("if rank:\n    import tfdist\n    tfdist.init()\nelse:\n    time.sleep(1000)\n")
    limits = {"TFDIST_STALL_CHECK_WARNING_TIME": "1", "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "3"}
    done = launch.run("-np", "2", "python", "rank.py", variables=limits)
    assert done.code == 1
    assert "still waiting: rank 1 has waited 1 seconds in tfdist.init()" in done.stderr
    assert "has not announced the other ranks within 3 s" in done.stderr


@pytest.mark.starter("direct")
def test_second_start_of_a_rank_is_refused_at_once(launch: Any) -> None:
    """And a list that is no list of ranks before anything has started."""
    launch.script(
        "import tfdist\n"
        "try: tfdist.init(comm=[0, 0, 1])\n"
        "except tfdist.errors.ConfigError as error: assert 'distinct ranks' in str(error)\n"
        "else: raise AssertionError\n"
        "tfdist.init()\nassert tfdist.size() == 2\ntfdist.shutdown()\n"
        "try: tfdist.init()\n"
        "except tfdist.errors.ConfigError as error: assert 'can start only once' in str(error)\n"
        "else: raise AssertionError\n"
    )
    done = launch.run("-np", "2", "python", "rank.py")
    assert done.code == 0, done.stderr


@pytest.mark.starter("direct")
def test_lists_that_do_not_fit_together_are_an_error(launch: Any) -> None:
    launch.script("import tfdist\ntfdist.init(comm=[[0, 1], [2, 1], [2, 0]][rank])\nprint('started', flush=True)\n")
    limit = {"TFDIST_STALL_CHECK_SHUTDOWN_TIME": "3"}
    done = launch.run("-np", "3", "python", "rank.py", variables=limit)
    assert done.code == 1
    assert "started" not in done.stdout
    assert "does not have this job's key" in done.stderr or "waited 3 s for connections" in done.stderr
