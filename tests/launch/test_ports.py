"""Where the processes of a job without MPI listen and for how long; strangers at the ranks' ports change nothing."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tfdist.protocol.handshake import Dialer

pytestmark = pytest.mark.starter("direct")
LISTENING = "0A"
MEETS = """\
import tfdist
while rank and not os.path.exists('go'): time.sleep(0.01)
tfdist.init(process_sets="dynamic")
pair = tfdist.add_process_set([0, 1])
total = sum(tfdist.allgather_object(rank, process_set=pair)) if pair.included() else 0
open(f'up{rank}', 'w').close()
while not os.path.exists('end'): time.sleep(0.01)
print('the sum is', total, flush=True)
"""


def listeners(processes: dict[int, str]) -> set[str]:
    """The addresses on which these processes listen, as HOST:PORT."""
    inodes = {}
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                host, _, port = fields[1].partition(":")
                inodes[fields[9]] = f"{_readable(host)}:{int(port, 16)}"
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for link in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{process}/fd/{link}"))
                    if match and match[1] in inodes:
                        found.add(inodes[match[1]])
    return found


def _readable(host: str) -> str:
    """Of an address as the kernel writes it: words of 4 bytes, each in the order of this machine."""
    words = [bytes.fromhex(host[place : place + 8])[::-1] for place in range(0, len(host), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def test_only_loopback_is_listened_on_and_only_at_the_start(launch: Any, wait_until: Any) -> None:
    launch.script(MEETS)
    job = launch.start("-np", "3", "python", "rank.py")
    wait_until(lambda: len(listeners(launch.processes())) == 2, what="the ports of the launcher and of rank 0")
    assert {at.partition(":")[0] for at in listeners(launch.processes())} == {"127.0.0.1"}
    (launch.folder / "go").touch()
    wait_until(lambda: len(launch.files("up*")) == 3, what="the ranks")
    (left,) = listeners(launch.processes())
    assert left.startswith("127.0.0.1:"), "that of the launcher"
    (launch.folder / "end").touch()
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] the sum is {total}" for rank, total in enumerate((1, 1, 0))]


def test_strangers_at_the_port_of_a_rank_change_nothing(launch: Any, wait_until: Any) -> None:
    """200 that say nothing and 200 that lie, at each port that is open."""
    launch.script(MEETS.replace("[0, 1]", "[0, 1, 2]"))
    job = launch.start("-np", "3", "python", "rank.py")
    wait_until(lambda: len(listeners(launch.processes())) == 2, what="the ports of the launcher and of rank 0")
    with contextlib.ExitStack() as strangers:
        for at in listeners(launch.processes()):
            host, _, port = at.partition(":")
            for number in range(400):
                stranger = strangers.enter_context(socket.create_connection((host, int(port)), 10))
                with contextlib.suppress(OSError):  # the oldest ones were dropped
                    stranger.sendall((b"", Dialer(os.urandom(32), b"", 1, 0).unsent, b"", os.urandom(99))[number % 4])
        (launch.folder / "go").touch()
        wait_until(lambda: len(launch.files("up*")) == 3, what="the ranks")
        (launch.folder / "end").touch()
        done = launch.end(job)
    assert done.code == 0, done.stderr
    assert done.stdout.count("the sum is 3") == 3
