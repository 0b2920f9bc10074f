"""Starts agents on other hosts, by ssh or by Slurm's srun, and gives them the job's key on their standard input."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.errors import PeerLostError
from tfdist.launch.agent import summoned
from tfdist.launch.host.host import Host
from tfdist.launch.start.starter import Ssh
from tfdist.launch.wire.call import anonymous_file
from tfdist.system.process import before_exec

_KEY_BYTES = 32
_PATIENCE_S = 2.0
_LINES = 50
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class _Started:
    """A program that starts the agents of some hosts, and what it prints."""

    process: subprocess.Popen[bytes]
    hosts: tuple[str, ...]
    errors: int

    def lines(self) -> list[str]:
        text = os.pread(self.errors, _MOST_BYTES, 0).decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()][:_LINES]


@dataclass
class Summons:
    """Use once.

    Args:
        hosts: The hosts, with their slots.
        ssh: How ssh reaches them.
        srun: The path of srun, for a job of Slurm; empty to use ssh.
        environment: The environment of ssh or srun.
        key: What the agents are given; never on a command line or in an environment.
    """

    hosts: Sequence[Host]
    ssh: Ssh
    srun: str
    environment: Mapping[str, str] = field(repr=False)
    key: bytes = field(default_factory=lambda: secrets.token_hex(_KEY_BYTES).encode(), repr=False)
    _started: list[_Started] = field(default_factory=list)

    @property
    def by_ssh(self) -> bool:
        """Whether ssh starts them."""
        return not self.srun

    def start(self, launcher: str) -> None:
        """Starts the agents, which dial the launcher at this address. Raises PeerLostError."""
        if self.srun:
            self._spawn(self._srun_words(launcher), tuple(host.name for host in self.hosts))
            return
        for host in self.hosts:
            command = [*_PROGRAM, launcher, str(host.slots), host.name]
            words = ["ssh", *self.ssh.words(), host.name, f"exec {shlex.join(command)}"]
            self._spawn(words, (host.name,))

    def failed(self, hosts: Collection[str]) -> dict[str, str]:
        """Those of these hosts whose program has ended, each with its last words."""
        found: dict[str, str] = {}
        for started in self._started:
            status = started.process.poll()
            if status is not None:
                said = (started.lines() or [f"{self._name} ended with status {status}"])[-1]
                found |= {name: said for name in started.hosts if name in hosts}
        return found

    def said(self) -> list[str]:
        """What the programs have printed, a line each."""
        lines = []
        for started in self._started:
            mark = f"{self._name} {started.hosts[0]}" if self.by_ssh else self._name
            lines += [f"[{mark}] {line}" for line in started.lines()]
        return lines

    def close(self) -> None:
        """Ends the programs that still run; their agents end when the launcher closes the connection."""
        running = [each.process for each in self._started if each.process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def _name(self) -> str:
        return "srun" if self.srun else "ssh"

    def _srun_words(self, launcher: str) -> list[str]:
        """One agent for each node; a node calls itself as it is called in the list."""
        words = [self.srun, "--overlap", "--export=ALL", "--input=all", "--kill-on-bad-exit=0", "--ntasks-per-node=1"]
        words += [f"--nodes={len(self.hosts)}", f"--ntasks={len(self.hosts)}"]
        words.append("--nodelist=" + ",".join(host.name for host in self.hosts))
        slots = str(max(host.slots for host in self.hosts))
        return [*words, "sh", "-c", 'exec "$@" "$SLURMD_NODENAME"', "sh", *_PROGRAM, launcher, slots]

    def _spawn(self, words: Sequence[str], hosts: tuple[str, ...]) -> None:
        errors = anonymous_file()
        try:
            process = subprocess.Popen(
                words,
                env=dict(self.environment),
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                preexec_fn=before_exec(signal.SIGTERM, own_session=True),  # noqa: PLW1509  (before any thread)
            )
        except OSError as error:
            raise PeerLostError(f"{words[0]} cannot be run: {error.strerror}") from None
        self._started.append(_Started(process, hosts, errors))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `failed` shows
            process.stdin.write(self.key + b"\n")
            process.stdin.close()


# Started by path, in isolated mode: this is fast, and no user file can shadow their modules.
_PROGRAM = (sys.executable, "-I", "-S", str(Path(summoned.__file__).resolve()))
