"""Runs the user's host discovery script. `membership` decides what to do with the result."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Callable

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.host import Host
from tfdist.system import program
from tfdist.system.process import before_exec, kill

TIMEOUT_S = 20.0
# The same interval as horovodrun.
LOOK_S = 1.0
_MOST_BYTES = 1 << 20
_SHOWN = 200


class DiscoveryError(Exception):
    """The script gave no valid list of hosts; the message says why."""


class NoHostError(DiscoveryError):
    """The script printed an empty list, which may be correct; the message includes its other output."""


def find_hosts(command: str, slots_per_host: int = 1, timeout_s: float = TIMEOUT_S) -> tuple[Host, ...]:
    """Runs the script once.

    Args:
        command: The script with its arguments, as a shell would split them. It prints one host per line, as
            `name:slots` or `name`.
        slots_per_host: Slots of a host that is printed without a number.
        timeout_s: How long it may take.

    Raises:
        NoHostError: If it prints no host.
        DiscoveryError: If it cannot be run, fails, times out or prints anything else.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DiscoveryError(f"it cannot be run: {error}") from None
    if not words:
        raise DiscoveryError("it cannot be run: the command is empty; give the full path of a script")
    try:
        # In its own session, so that its child processes can be killed with it; it ends with this process.
        script = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before_exec(signal.SIGKILL, own_session=True),  # noqa: PLW1509  (it takes no lock)
        )
    except OSError as error:
        raise DiscoveryError(f"it cannot be run: {program.obstacle(words[0], error)}") from None
    try:
        said, complaint = script.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(script)
        raise DiscoveryError(f"it did not finish within {timeout_s:g} s") from None
    except KeyboardInterrupt:
        _end(script)
        raise
    last = complaint.decode(errors="replace").strip().rpartition("\n")[2][:_SHOWN]
    if script.returncode != 0:
        raise DiscoveryError(f"it exited with status {script.returncode}{': ' if last else ''}{last}")
    if len(said) > _MOST_BYTES:
        raise DiscoveryError(f"it printed {len(said)} bytes; expected one host per line")
    try:
        found = host.parse_found(said.decode(), slots_per_host)
    except (ConfigError, UnicodeDecodeError) as error:
        raise DiscoveryError(str(error)[:_SHOWN]) from None
    if not found:
        raise NoHostError(f"it printed no host: stdout {said.decode()[:_SHOWN]!r}, stderr {last!r}")
    return found


def _end(script: subprocess.Popen[bytes]) -> None:
    """Kills the script and its child processes."""
    kill(script)
    # A process that has left the session survives, and may keep the pipes open.
    for pipe in filter(None, (script.stdout, script.stderr)):
        pipe.close()


def wait_for_hosts(
    look: Callable[[], tuple[Host, ...]], timeout_s: float, say: Callable[[str], None]
) -> tuple[Host, ...]:
    """The hosts at the start of a job; waits if there are none yet.

    Args:
        look: Runs the script, as `find_hosts`.
        timeout_s: How long the list may be empty.
        say: Called with a message if it has to wait.

    Raises:
        DiscoveryError: If the list stays empty, or `look` fails otherwise.
    """
    end = time.monotonic() + timeout_s
    told = False
    while True:
        try:
            return look()
        except NoHostError as error:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise NoHostError(f"{error}, and printed none within {timeout_s:g} s (--elastic-timeout)") from None
            if not told:
                say(f"{error}; waiting up to {timeout_s:g} s for hosts (--elastic-timeout)")
                told = True
        time.sleep(min(LOOK_S, left_s))
