"""Asks the user's script which hosts there are. What follows from the answer is decided in `membership`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess

from tfdist.errors import ConfigError
from tfdist.launch import host
from tfdist.launch.host import Host

TIMEOUT_S = 20.0
# How long a killed script may take to be gone.
_KILLED_S = 2.0
_MOST_BYTES = 1 << 20
_SHOWN = 200


class DiscoveryError(Exception):
    """The script gave no list of hosts; says why."""


def find_hosts(command: str, slots_per_host: int = 1, timeout_s: float = TIMEOUT_S) -> tuple[Host, ...]:
    """Runs the script once.

    Args:
        command: The script with its arguments, as a shell would split them. It prints a host a line: `name:slots` or
            `name`.
        slots_per_host: Slots of a host without a number.
        timeout_s: How long it may take.

    Raises:
        DiscoveryError: If it cannot be run, fails, takes too long or prints something else.
    """
    try:
        words = shlex.split(command)
        # In a session of its own, so that whatever it starts can be ended with it.
        script = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except (OSError, ValueError, IndexError) as error:
        raise DiscoveryError(f"it cannot be run: {error}") from None
    try:
        said, complaint = script.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGKILL)
        # What has left the session lives on, and may hold the pipes open.
        for pipe in filter(None, (script.stdout, script.stderr)):
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and is reaped later
            script.wait(_KILLED_S)
        raise DiscoveryError(f"it has not ended within {timeout_s:g} s") from None
    if script.returncode != 0:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2][:_SHOWN]
        raise DiscoveryError(f"it ended with status {script.returncode}{': ' if last else ''}{last}")
    if len(said) > _MOST_BYTES:
        raise DiscoveryError(f"it printed {len(said)} bytes; expected a host a line")
    try:
        return host.parse_found(said.decode(), slots_per_host)
    except (ConfigError, UnicodeDecodeError) as error:
        raise DiscoveryError(str(error)[:_SHOWN]) from None
