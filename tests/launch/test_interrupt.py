"""Jobs that are ended from outside: Ctrl-C, SIGTERM, a closed terminal, and the launcher's own violent death."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

READY = "open(f'up{rank}', 'w').close()\n"
STAY = "while True: time.sleep(0.05)\n"


def _running(launch: Any, wait_until: Any, ranks: int) -> Any:
    job = launch.start("-np", str(ranks), "python", "rank.py")
    wait_until(lambda: len(launch.files("up*")) == ranks, what="all ranks")
    return job


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_is_passed_on_and_waited_for(launch: Any, wait_until: Any, signum: int, code: int, ranks: int) -> None:
    launch.script(
        "def stop(signum, frame):\n    open(f'got{rank}', 'w').close()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, stop)\nsignal.signal(signal.SIGTERM, stop)\n" + READY + STAY
    )
    job = _running(launch, wait_until, ranks)
    job.send_signal(signum)
    done = launch.end(job)
    assert done.code == code
    assert done.seconds < 8
    assert len(launch.files("got*")) == ranks
    assert f"interrupted by {signum.name}\n" in done.stderr


def test_signals_that_the_caller_ignores_stay_ignored(launch: Any, wait_until: Any) -> None:
    """As nohup and a script's `&` have it."""
    launch.script(READY + "while not os.path.exists('go'): time.sleep(0.01)\nprint('went on')")
    words = ("-np", "2", "python", "rank.py")
    job = launch.start(*words, inside=("sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh"))
    wait_until(lambda: len(launch.files("up*")) == 2, what="all ranks")
    job.send_signal(signal.SIGHUP)
    job.send_signal(signal.SIGINT)
    (launch.folder / "go").touch()
    done = launch.end(job)
    assert (done.code, done.stdout.count("went on"), done.stderr) == (0, 2, "")


def test_second_ctrl_c_kills(launch: Any, wait_until: Any) -> None:
    launch.script(
        "signal.signal(signal.SIGINT, lambda *_: open(f'got{rank}', 'w').close())\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + STAY
    )
    job = _running(launch, wait_until, 2)
    job.send_signal(signal.SIGINT)
    wait_until(lambda: len(launch.files("got*")) == 2)
    job.send_signal(signal.SIGINT)
    done = launch.end(job)
    assert done.code == 130
    assert done.seconds < 5


def test_launcher_killed_leaves_nothing(launch: Any, wait_until: Any) -> None:
    launch.script(
        "import subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n" + READY + STAY
    )
    job = _running(launch, wait_until, 2)
    os.kill(job.pid, signal.SIGKILL)
    wait_until(lambda: not launch.processes(), seconds=10, what="the end of all processes")
    launch.end(job)


@pytest.mark.starter("mpi")
@pytest.mark.parametrize("victims", ["launcher", "mpirun", "guard", "launcher guard mpirun"])
def test_killed_part_leaves_nothing_in_memory_or_on_disk(launch: Any, wait_until: Any, victims: str) -> None:
    launch.script(
        "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "open(f'new{rank}', 'w').write(os.environ['TFDIST_JOB_ID'])\nos.rename(f'new{rank}', f'up{rank}')\n" + STAY
    )
    (launch.folder / "tmp").mkdir()
    job = launch.start("-np", "2", "python", "rank.py", variables={"TMPDIR": str(launch.folder / "tmp")})
    wait_until(lambda: len(launch.files("up*")) == 2, what="all ranks")
    (session,) = launch.files("tmp/*")
    assert any(session.iterdir()), "mpirun does not use its folder"
    memory = f"tfdistrun-{launch.files('up*')[0].read_text()}-*"
    assert len(list(Path("/dev/shm").glob(f"{memory}/*"))) == 2, "MPI does not use the ranks' folders"
    found = {"launcher": job.pid}
    for pid, words in launch.processes().items():
        if words.split()[0].endswith(("mpirun", "prterun")):
            found["mpirun"] = pid
        elif "run/guard.py" in words:
            found["guard"] = pid
    for victim in victims.split():
        os.kill(found[victim], signal.SIGKILL)
    launch.end(job)
    wait_until(lambda: not launch.processes(), seconds=10, what="the end of all processes")
    assert launch.files("tmp/*") == []
    assert list(Path("/dev/shm").glob(memory)) == []


def test_signal_while_starting(launch: Any, wait_until: Any) -> None:
    launch.script(STAY)
    job = launch.start("-np", "2", "python", "rank.py")
    wait_until(lambda: any("guard.py" in words for words in launch.processes().values()), what="the guard")
    job.send_signal(signal.SIGTERM)
    assert launch.end(job).code == 143


def test_garbage_on_the_port_is_refused_and_reported_once(launch: Any, wait_until: Any) -> None:
    import socket

    launch.script(
        "open(f'up{rank}', 'w').write(os.environ['TFDIST_RUN_ADDRESS'])\n"
        "while not os.path.exists('go'): time.sleep(0.01)"
    )
    job = launch.start("-np", "2", "python", "rank.py")
    wait_until(lambda: len(launch.files("up*")) == 2 and all(path.read_text() for path in launch.files("up*")))
    host, _, port = launch.files("up*")[0].read_text().rpartition(":")
    assert host == "127.0.0.1"
    for junk in (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * 30, bytes(100), b"\xff" * 100):
        with socket.create_connection((host, int(port)), 5) as stranger:
            stranger.sendall(junk)
            stranger.settimeout(5)
            try:
                assert stranger.recv(1) == b""
            except ConnectionResetError:
                pass
    (launch.folder / "go").touch()
    done = launch.end(job)
    assert done.code == 0
    assert done.stderr.count("refused a connection") == 1
