"""Whoever reaches the launcher's port without its key ends no job, changes none and hangs none."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tfdist.launch.wire.record import TO_LAUNCHER, TO_RANK, Sealer

pytestmark = pytest.mark.starter("mpi")

# It has joined and committed, and leaves when it is asked to: what a stranger says could end it.
RANK = """\
from tfdist.protocol import member
member.report(member.JOINED)
member.report(member.COMMITTED)
with open(f'new{rank}', 'w') as file:
    file.write(f"{os.environ['TFDIST_RUN_ADDRESS']} {os.environ['TFDIST_JOB_ID']} {os.getpid()} {os.getppid()}")
os.rename(f'new{rank}', f'up{rank}')
while not os.path.exists('end'):
    if member.must_leave(): sys.exit(member.LEFT_STATUS)
    time.sleep(0.05)
"""
ENDED = {"code": 3, "signal": None, "told": False, "tail": ["lie"]}
# What ranks say, of all kinds that begin or end something.
LIES: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("left", {}), ("stalled", {}), ("failing", {}), ("committed", {}), ("finished", ENDED), ("alive", {})),
    *(("hello", {"host": "elsewhere", "pid": 1}), ("output", {"stream": "stdout", "text": "lie", "end": "line"})),
)


def _garbage(job: str, drawn: random.Random) -> Iterator[bytes]:
    """Bytes by chance, heads that promise much, and true frames but for the key, the job or a byte."""
    for _ in range(40):
        yield drawn.randbytes(drawn.randrange(1, 600))
    yield from (b"\xff" * 64, bytes(64), b"GET / HTTP/1.1\r\n\r\n", b'{"kind": "left"}\n' * 20)
    for rank in (0, 1, 7):
        for kind, fields in LIES:
            for direction in (TO_LAUNCHER, TO_RANK):
                sealer = Sealer(job, drawn.randbytes(32), direction, rank)
                frame = bytearray(sealer.seal("hello", host="localhost", pid=1) + sealer.seal(kind, **fields))
                yield bytes(frame)
                frame[drawn.randrange(len(frame))] ^= 1 << drawn.randrange(8)
                yield bytes(frame[: drawn.randrange(1, len(frame))])


def _say(address: tuple[str, int], data: bytes) -> bytes:
    """What the launcher answers; nothing is what a stranger gets."""
    with socket.create_connection(address, 10) as stranger:
        stranger.settimeout(10)
        try:
            stranger.sendall(data)
            return stranger.recv(1) if _is_done(stranger) else b""
        except ConnectionError:
            return b""


def _is_done(stranger: socket.socket) -> bool:
    """Says that nothing more comes; False if nobody listens any more."""
    try:
        stranger.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return True


def test_strangers_change_nothing(launch: Any, wait_until: Any) -> None:
    """An elastic job, which would otherwise start anew, leave or go on without a rank: before and after it does so."""
    launch.script(RANK)
    job = launch.start("-np", "3", "--elastic", "python", "rank.py")
    wait_until(lambda: len(launch.files("up*")) == 3, what="the ranks")
    told = [path.read_text().split() for path in launch.files("up*")]
    host, _, port = told[0][0].rpartition(":")
    address, drawn = (host, int(port)), random.Random(7)
    with contextlib.ExitStack() as stack:
        for _ in range(20):  # who say nothing at all
            stack.enter_context(socket.create_connection(address, 10))
        answers = {_say(address, data) for data in _garbage(told[0][1], drawn)}
        os.kill(int(told[1][2]), signal.SIGKILL)
        # The supervisor goes when it is known that the others go on.
        wait_until(lambda: int(told[1][3]) not in launch.processes(), what="the loss")
        answers |= {_say(address, data) for data in _garbage(told[0][1], drawn)}
        (launch.folder / "end").touch()
        done = launch.end(job)
    assert answers == {b""}
    assert done.code == 0, done.stderr
    assert done.stdout == ""
    assert "rank 1 (" in done.stderr and "was killed by signal 9 (SIGKILL); 2 ranks continue" in done.stderr
    assert done.stderr.count("refused a connection") == 1
    assert "lie" not in done.stderr
    assert "anew" not in done.stderr
