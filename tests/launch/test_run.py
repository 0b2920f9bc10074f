"""`tfdist.run` with real jobs: what comes back by rank, what is raised, what is shown, and that nothing is left."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import tfdist
from tfdist.errors import ConfigError, RankError

SLICE = pytest.mark.slice("launch")
# The ranks cannot import a test module; what the functions below use of it travels with them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1 << 20


def rank() -> int:
    return int(os.environ["RANK"])


def wait_for(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.01)


def stay() -> None:
    signal.pause()


def children() -> set[int]:
    """The process ids of this process's children, the ended ones that nobody waited for among them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Callable[..., None],
    descriptors_close: Callable[[], AbstractContextManager[None]],
) -> Iterator[None]:
    """No descriptor, thread, child or temporary file after a job, however it ended."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    threads = threading.active_count()
    before = children()
    with descriptors_close():
        yield
    assert threading.active_count() == threads
    assert multiprocessing.active_children() == []
    # Of a launcher that was killed, the guard ends what it left.
    wait_until(lambda: not list(folder.iterdir()), seconds=10, what="the end of temporary files")
    # One that another test has begun, such as multiprocessing's tracker of resources, is not the job's.
    assert children() - before == set()


class Strange(Exception):
    """Cannot be made again from what it holds."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class TestResults:
    @pytest.mark.parametrize("ranks", [pytest.param(1, marks=SLICE), 2, pytest.param(3, marks=SLICE)])
    def test_collective_by_rank(self, ranks: int) -> None:
        def total(factor: float, shift: float = 0.0) -> list[Any]:
            import tensorflow as tf

            assert not tfdist.is_initialized()
            tfdist.init()
            mine = tf.constant(factor * 3.0 ** tfdist.rank() + shift)
            return [tfdist.rank(), tfdist.size(), tfdist.allreduce(mine, op=tfdist.Sum).numpy()]

        expected = sum(2.0 * 3.0**one + 5.0 for one in range(ranks))
        found = tfdist.run(total, (2.0,), {"shift": 5.0}, num_proc=ranks)
        assert found == [[one, ranks, np.float32(expected)] for one in range(ranks)]

    def test_values_of_any_kind(self) -> None:
        values = [None, {1: (2, {3})}, np.arange(3), tfdist.Sum, Strange, lambda: 4]
        ((none, mixed, array, op, kind, function),) = tfdist.run(lambda: values)
        assert (none, mixed, op, kind, function()) == (None, {1: (2, {3})}, tfdist.Sum, Strange, 4)
        assert array.tolist() == [0, 1, 2]

    def test_64_mib_there_and_back(self) -> None:
        data = np.random.default_rng(0).bytes(64 * MIB)

        def turn(received: bytes) -> bytes:
            return received[rank() + 1 :] + received[: rank() + 1]

        digests = [hashlib.sha256(found).digest() for found in tfdist.run(turn, (data,), num_proc=2)]
        assert digests == [hashlib.sha256(data[n:] + data[:n]).digest() for n in (1, 2)]

    def test_from_a_thread(self) -> None:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(tfdist.run(rank, num_proc=2)))
        thread.start()
        thread.join(60)
        assert found == [0, 1]

    def test_executable(self, tmp_path: Path) -> None:
        wrapper = tmp_path / "python-with-mark"
        wrapper.write_text(f'#!/bin/sh\nRUN_MARK=seen exec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        assert tfdist.run(lambda: os.environ.get("RUN_MARK"), executable=wrapper) == ["seen"]

    def test_process_of_a_rank(self) -> None:
        """Its input is empty, its arguments are its own, and no key or descriptor of the job reaches a child of it."""

        def look() -> list[Any]:
            child = os.popen("ls /proc/self/fd | wc -l").read().strip()
            return [sys.stdin.read(), sys.argv[1:], "TFDIST_RUN_KEY" in os.environ, child]

        plain = os.popen("ls /proc/self/fd | wc -l").read().strip()
        assert tfdist.run(look) == [["", [], False, plain]]


class TestFailures:
    def test_exception_while_a_peer_waits_in_a_collective(self) -> None:
        def fail() -> None:
            tfdist.init()
            if tfdist.rank() == 1:
                raise KeyError("no such thing")
            tfdist.barrier(name="never left")

        with pytest.raises(KeyError, match="no such thing") as caught:
            tfdist.run(fail, num_proc=2)
        cause = caught.value.__cause__
        assert isinstance(cause, RankError)
        assert cause.rank == 1
        assert "rank 1 of 2 on " in str(cause)
        assert "in fail\n    raise KeyError" in str(cause)

    def test_exception_while_a_peer_waits_in_a_collective_of_mpi4py(self) -> None:
        """On its way out the failed rank waits in MPI_Finalize for the other, so its end would never come."""

        def fail() -> None:
            from mpi4py import MPI

            if MPI.COMM_WORLD.rank == 1:
                raise KeyError("no such thing")
            MPI.COMM_WORLD.Barrier()

        with pytest.raises(KeyError):
            tfdist.run(fail, num_proc=2)

    def test_first_in_time_though_its_process_ends_last(self, tmp_path: Path) -> None:
        def fail() -> None:
            if rank() == 1:
                # The handlers run at the end: rank 0 fails, and ends, before this process can.
                atexit.register(wait_for, tmp_path / "ended")
                atexit.register((tmp_path / "raised").touch)
                raise Strange(1, 1) if rank() else ValueError(rank())
            atexit.register((tmp_path / "ended").touch)
            wait_for(tmp_path / "raised")
            raise ValueError(rank())

        with pytest.raises(RankError, match="1 and 1") as caught:
            tfdist.run(fail, num_proc=2)
        assert caught.value.rank == 1

    def test_killed(self) -> None:
        def die() -> None:
            tfdist.init()
            tfdist.barrier()
            if tfdist.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            tfdist.barrier()

        with pytest.raises(RankError, match=r"rank 1 of 3 on [\s\S]* before the function returned.*\n.*SIGKILL") as e:
            tfdist.run(die, num_proc=3)
        assert e.value.rank == 1

    @pytest.mark.parametrize("code", [pytest.param(0, marks=SLICE), 3, "no more"])
    def test_sys_exit(self, code: Any) -> None:
        with pytest.raises(RankError, match=rf"sys\.exit\({code}\) on rank 1 of 2") as caught:
            tfdist.run(lambda: sys.exit(code) if rank() == 1 else stay(), num_proc=2)
        assert caught.value.rank == 1

    def test_process_ended_by_the_function(self) -> None:
        with pytest.raises(RankError, match=r"rank 0 of 2 on .* exited with code 0 before the function returned"):
            tfdist.run(lambda: os._exit(0) if rank() == 0 else stay(), num_proc=2)

    def test_process_that_fails_after_the_result(self) -> None:
        def late() -> int:
            atexit.register(os._exit, 5)
            return 0

        with pytest.raises(RankError, match=r"rank 0 of 1 on .* after the function returned\.\n.*exit code 5"):
            tfdist.run(late)

    def test_result_that_cannot_be_pickled(self) -> None:
        with pytest.raises(RankError, match=r"rank 0 of 1 .* of type generator .*: cannot pickle") as caught:
            tfdist.run(lambda: (number for number in range(3)))
        assert caught.value.rank == 0

    def test_module_that_ranks_cannot_import(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "only_here.py").write_text("def function():\n    return 1\n")
        with monkeypatch.context() as context:
            context.syspath_prepend(str(tmp_path))
            import only_here  # type: ignore[import-not-found]

            assert tfdist.run(only_here.function) == [1]
        with pytest.raises(RankError, match=r"cannot be unpickled on rank 0 .*No module named 'only_here'"):
            tfdist.run(only_here.function)

    def test_rank_starts_no_job(self) -> None:
        with pytest.raises(ConfigError, match="cannot be called on a rank of a running job") as caught:
            tfdist.run(lambda: tfdist.run(rank))
        assert isinstance(caught.value.__cause__, RankError)

    def test_launcher_killed(self) -> None:
        def kill() -> None:
            pid = os.getpid()
            while Path(f"/proc/{pid}/cmdline").read_bytes().count(b"function/runner.py") != 1:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(pid, signal.SIGKILL)
            stay()

        with pytest.raises(RankError, match="the launcher of its job was killed"):
            tfdist.run(kill)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"hosts": "localhost:2", "num_proc": 3}, "num_proc=3 exceeds the 2 slots of localhost:2"),
            ({"hosts": "localhost", "hostfile": "x"}, "hosts and hostfile cannot be combined"),
            ({"hosts": "a:0"}, "hosts=a:0: '0' is not a number of slots"),
            ({"hostfile": "no-such"}, "hostfile no-such cannot be read"),
            ({"start_timeout": 0}, "argument start_timeout: '0' is not a number of seconds"),
            ({"ssh_port": 70000}, "argument ssh_port: '70000' is not a port"),
            ({"executable": "no-such-python"}, "no-such-python: no such command on PATH"),
        ],
    )
    def test_what_the_launcher_refuses(self, given: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigError, match=f"^tfdist.run: {text}"):
            tfdist.run(rank, **given)


class TestOutput:
    def test_prefixed_on_the_streams_of_this_interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)

        def speak() -> None:
            print("grüße", 7 * rank())
            print("error", rank(), file=sys.stderr)

        tfdist.run(speak, num_proc=2)
        assert sorted(out.getvalue().splitlines()) == ["[0] grüße 0", "[1] grüße 7"]
        assert sorted(line for line in err.getvalue().splitlines() if line[0] == "[") == ["[0] error 0", "[1] error 1"]

    def test_on_descriptors(self, launch: Any) -> None:
        text = "import tfdist\nprint('before')\ntfdist.run(lambda: print('inside'))\nprint('after')"
        (launch.folder / "job.py").write_text(text)
        done = launch.end(launch.start(program=["job.py"]))
        assert done.stdout == "before\n[0] inside\nafter\n", done.stderr

    def test_files_and_remarks(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        tfdist.run(lambda: print("out"), output_filename=tmp_path / "logs", disable_cache=True, verbose=True)
        assert (tmp_path / "logs/rank.0/stdout").read_text() == "out\n"
        said = capfd.readouterr().err
        assert "tfdistrun: disable_cache has no effect" in said
        assert "mpirun -np 1 " in said

    def test_without_mpi(self) -> None:
        def facts() -> tuple[bool, int]:
            tfdist.init()
            return tfdist.gloo_enabled(), len(tfdist.allgather_object(tfdist.rank()))

        assert tfdist.run(facts, num_proc=2, use_gloo=True) == [(True, 2)] * 2
