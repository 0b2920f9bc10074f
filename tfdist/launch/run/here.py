"""The programs that start ranks, or their supervisors, on this machine: each runs under a guard of its own."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.launch.run import guard
from tfdist.launch.supervisor import task
from tfdist.system.process import before_exec

# Started by path, in isolated mode: this is fast, and no user file can shadow their modules.
SUPERVISOR, _GUARD = (
    (sys.executable, "-I", "-S", str(Path(str(file)).resolve())) for file in (task.__file__, guard.__file__)
)


@dataclass(frozen=True)
class StarterSaid:
    """An event: such a program has printed a line."""

    line: str


@dataclass(frozen=True)
class StarterEnded:
    """An event: such a program has ended. `crew` is what it was started as."""

    status: int
    crew: str


class Here:
    """Use `start` from the thread that lives as long as the programs shall.

    Args:
        events: Where events go.
    """

    def __init__(self, events: queue.SimpleQueue[Any]) -> None:
        self._events = events
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def has_started(self) -> bool:
        """Whether a program was started."""
        return bool(self._running)

    def start(self, words: Sequence[str], environment: Mapping[str, str], crew: str = "") -> list[str]:
        """Starts a program; returns the whole command.

        Args:
            words: Its command.
            environment: Its environment.
            crew: What its events are to call it.
        """
        command = [*_GUARD, *words]
        # In its own session, so that Ctrl-C reaches the ranks through us, once, and not through mpirun, which kills.
        started = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=before_exec(signal.SIGHUP, own_session=True),  # noqa: PLW1509  (it takes no lock)
        )
        self._running.append(started)
        threading.Thread(target=self._watch, args=(started, crew), name="tfdistrun-starter", daemon=True).start()
        return command

    def terminate(self) -> None:
        """Asks those that still run to end."""
        for started in self._running:
            if started.poll() is None:
                started.terminate()

    def _watch(self, started: subprocess.Popen[bytes], crew: str) -> None:
        assert started.stdout is not None

        def read(pipe: Any) -> None:
            for line in pipe:
                self._events.put(StarterSaid(line.decode(errors="replace").rstrip()))

        reader = threading.Thread(target=read, args=(started.stdout,), daemon=True)
        reader.start()
        status = started.wait()
        # A process that inherited the pipe may hold it open after mpirun has exited.
        reader.join(0.5)
        if not reader.is_alive():
            started.stdout.close()
        self._events.put(StarterEnded(status, crew))
