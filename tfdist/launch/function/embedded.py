"""An agent as the child of a process of another engine: a task of Spark, or an actor of Ray. Its ranks are `worker`s.

That process is alive as long as its engine wants, and the agent ends with it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError
from tfdist.launch.agent import summoned
from tfdist.launch.function import worker
from tfdist.system.process import before_exec
from tfdist.system.rank import job_place

_SAID_BYTES = 4096
# Of the name of a host, to which that of the task is added: names have at most 64 characters.
_LONGEST = 48
# What ranks have from their host alone.
_OWN = ("PATH", "PYTHONPATH", "PYTHONHOME")
_PREFIX = "_TFDIST_TASK_"
_REFUSED = {
    "elastic_timeout": "ranks that live never wait for others",
    "reset_limit": "ranks are never started anew because others are lost",
}
# What a launcher sets for each rank.
_SET = (
    *job_place.OWN,
    *("TFDIST_LAUNCHED", "TFDIST_ELASTIC", "TF_CONFIG"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def program_of(executable: str | os.PathLike[str] | None = None) -> list[str]:
    """The program of a rank where only its host knows which: an interpreter, default the one there; and the worker of
    the tfdist there.
    """
    python = f'"${_PREFIX}PYTHON"' if executable is None else shlex.quote(os.fspath(executable))
    return ["/bin/sh", "-c", f'exec {python} "${_PREFIX}WORKER" "$@"', "rank"]


def check_variables(where: str, given: Any) -> None:
    """Raises ConfigError if these cannot be variables of ranks. `where` names the function and its argument."""
    pairs = list(given.items()) if isinstance(given, Mapping) else None
    if pairs is None or not all(isinstance(each, str) for pair in pairs for each in pair):
        raise ConfigError(f"{where} must map names to texts; received {given!r}.")
    for name, _ in pairs:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} cannot be the name of an environment variable.")
        if name in _SET or name in _OWN:
            raise ConfigError(f"{where}: {name} cannot be set here: each rank has its own, or that of its host.")


def check_refused(caller: str, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for what Horovod's elastic jobs have, and these have not."""
    for name, why in _REFUSED.items():
        if given[name] is not None:
            raise ConfigError(f"{caller}: {name} must be None, because {why}; received {given[name]!r}.")


def check_seconds(where: str, value: Any) -> None:
    """Raises ConfigError if this is no time limit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise ConfigError(f"{where} must be a number of seconds, more than 0; received {value!r}.")


def interface_words(where: str, given: Any) -> list[str]:
    """The option of tfdistrun for network interfaces, as "eth0,eth1" or a list; none for None. Raises ConfigError."""
    if given is None:
        return []
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a text or a list of texts; received {given!r}.")
    return [f"--network-interfaces={','.join(names)}"]


def agent_words(agents: int, address: str, key_file: int, variables: Mapping[str, str]) -> list[str]:
    """The options of tfdistrun for so many agents that come to an address with the key in a descriptor."""
    words = [f"-np={agents}", f"--agents={agents}", f"--listen={address}", f"--key-file=/proc/self/fd/{key_file}"]
    return words + ([f"--export={','.join(variables)}"] if variables else [])


@dataclass(frozen=True)
class Offer:
    """What an agent needs: the launcher's address as HOST:PORT, and the key."""

    launcher: str
    key: str = field(repr=False)


class EmbeddedAgent:
    """An agent with one slot. Start it in the thread that lives as long as the process, because it ends with that.

    Args:
        offer: From the launcher.
        name: What its host is called after the host's own name, as in "task-3".
        variables: What it and its rank find in their environment, besides that of this process.
    """

    def __init__(self, offer: Offer, name: str, variables: Mapping[str, str]) -> None:
        program = [sys.executable, "-I", "-S", str(Path(summoned.__file__).resolve())]
        words = [*program, offer.launcher, "1", f"{os.uname().nodename[:_LONGEST]}.{name}", "shared"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the agent runs)
        self._process = subprocess.Popen(
            words,
            env=_environment() | dict(variables),
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            preexec_fn=before_exec(signal.SIGTERM, own_session=True),  # noqa: PLW1509
        )
        assert self._process.stdin is not None
        self._process.stdin.write(offer.key.encode() + b"\n")
        self._process.stdin.close()

    def wait(self) -> int:
        """Its exit status; negative for a signal."""
        return self._process.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def was_alone(self) -> bool:
        """Whether it has ended because it did not come to the launcher."""
        return self._process.poll() == summoned.NOT_ENLISTED

    def said(self) -> str:
        """The last that it has said."""
        descriptor = self._errors.fileno()
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace").strip()


def _environment() -> dict[str, str]:
    """That of this process, and what `program_of` needs."""
    own = {f"{_PREFIX}PYTHON": sys.executable, f"{_PREFIX}WORKER": os.path.abspath(worker.__file__)}
    return {**os.environ, **own}
