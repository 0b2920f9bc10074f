"""docs/metrics.md is true: its script counts what it says, and each rank serves its metrics where it says."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slice("docs")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
# The script of the page ends at a barrier, to which rank 1 comes once it has been asked.
HOLD = """
if tfdist.rank() == 1:
    import os, time
    while not os.path.exists("asked"): time.sleep(0.01)
tfdist.barrier(name="end")
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def two_ports() -> int:
    """The lower of two free neighbours.

    Below those that the kernel gives to clients: one that knocks too early could be given the port it knocks at, and
    would talk to itself.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(first // 2, first - 1), 100):
        with contextlib.suppress(OSError):
            for number in (port, port + 1):
                socket.create_server(("127.0.0.1", number)).close()
            return port
    raise AssertionError("no two free ports in a hundred attempts")


def test_the_page_on_metrics_is_true(launch: Any, wait_until: Callable[..., None]) -> None:
    script, _ = blocks("python")
    start, curl = (block.split() for block in blocks("bash"))
    printed, served = blocks("text")
    end = 'tfdist.barrier(name="end")\n'
    assert script.endswith(end)
    (launch.folder / "count.py").write_text(script.removesuffix(end) + HOLD)
    assert start == ["TFDIST_METRICS_PORT=9400", "tfdistrun", "-np", "2", "python", "count.py"]
    port = two_ports()
    job = launch.start(*start[2:], variables={"TFDIST_METRICS_PORT": str(port)})
    url = curl[-1].replace("9401", str(port + 1))
    answers: list[str] = []

    def has_counted() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                answers.append(answer.read().decode())
        except OSError:
            return False
        return 'operation="allreduce"} 100\n' in answers[-1]

    wait_until(has_counted, seconds=55, what="100 calls")
    (launch.folder / "asked").write_text("")
    done = launch.end(job)
    assert done.code == 0, done.stderr
    assert answers[-1].startswith(served)
    for line in printed.splitlines():
        assert line in done.stdout
