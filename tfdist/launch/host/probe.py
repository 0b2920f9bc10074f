"""Checks by ssh whether hosts are up, after a job failed to start on them or lost them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence

from tfdist.errors import PeerLostError

CONNECT_TIMEOUT_S = 5
_PATIENCE_S = CONNECT_TIMEOUT_S + 3.0


class UnreachableError(PeerLostError):
    """Hosts on which nothing could be started.

    Args:
        message: What happened, and what to do.
        hosts: Their names.
    """

    def __init__(self, message: str, hosts: Iterable[str]) -> None:
        super().__init__(message)
        self.hosts = tuple(hosts)


def unreachable(hosts: Sequence[str], arguments: Sequence[str]) -> dict[str, str]:
    """The hosts on which `ssh HOST true` fails, each with the last line of ssh's output.

    All hosts are checked at the same time, within 8 s. If ssh is not installed, no host is reported.

    Args:
        hosts: Their names, as passed to ssh.
        arguments: Arguments of ssh before the name.
    """
    ssh = shutil.which("ssh")
    if ssh is None:
        return {}
    words = [ssh, "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", *arguments]
    asked = {
        name: subprocess.Popen(
            [*words, name, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for name in hosts
    }
    deadline = time.monotonic() + _PATIENCE_S
    for process in asked.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    said = {name: _failure(process) for name, process in asked.items()}
    return {name: text for name, text in said.items() if text}


def _failure(process: subprocess.Popen[bytes]) -> str:
    """Why ssh has not succeeded; empty if it has."""
    late = process.poll() is None
    if late:
        process.kill()
    _, text = process.communicate()
    if late:
        return f"no answer within {_PATIENCE_S:g} s"
    if process.returncode == 0:
        return ""
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit status {process.returncode}"
