"""Keeps servers of the data service running, each in its own process, in one loop without threads. Linux only.

`restart` decides whether a server is restarted. Does not import TensorFlow, so it starts quickly and stays small.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.status import DISPATCHER
from tfdist.data_service.process.restart import RestartPolicy, decide
from tfdist.system.process import before_exec
from tfdist.system.terminal.chatter import is_chatter

STARTING, READY, DRAINING, WAITING, ENDED, FAILED = "starting", "ready", "draining", "waiting", "ended", "failed"
_OVER = (ENDED, FAILED)
_LOST, _REFUSED = 1, 3
NODE = (sys.executable, "-m", "tfdist.data_service.process.node")
# Files of the folder we stand in must not shadow modules (Python 3.10 does not know it); GPUs are for trainers.
_VARIABLES = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "-1"}
_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16


@dataclass(eq=False)
class Member:
    """A server and its process; only the supervisor changes it.

    Attributes:
        name: How its lines are marked.
        role: "dispatcher" or "worker".
        config: The fields of its configuration; its ports once it has taken them.
        state: "starting", "ready", "draining", "waiting" (for its restart), "ended" (on request) or "failed".
        service: Its address in text form, once it was ready.
        detail: The last failure.
        restarts: How often it was restarted.
        code: Exit status of its last process; negative for a signal.
        leaving: Whether it was told to end.
        lost: What it lost by dying while draining; empty if nothing.
    """

    name: str
    role: str
    config: dict[str, Any]
    state: str = STARTING
    service: str = ""
    detail: str = ""
    restarts: int = 0
    code: int = 0
    leaving: bool = False
    lost: str = ""
    process: subprocess.Popen[bytes] | None = None
    failures: list[float] = field(default_factory=list)
    restart_at: float | None = None
    lines: dict[str, bytes] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether it will not run again."""
        return self.state in _OVER

    @property
    def address(self) -> str:
        """Host and port of its gRPC, once it was ready."""
        return ServiceAddress.parse(self.service).grpc if self.service else ""


class Supervisor:
    """Use it from the main thread only: children die with the thread that started them.

    Args:
        policy: How often each server may fail.
        drain_timeout_s: Seconds a worker may take to drain.
        show: Takes a line of a member's log, or of the supervisor's, without its line end.
        program: The command that starts a `node`; its role is appended.
        end_key: The key that ends a draining member; empty if there is no terminal.
    """

    def __init__(
        self,
        policy: RestartPolicy,
        drain_timeout_s: float,
        show: Callable[[str], None],
        program: Sequence[str] = NODE,
        end_key: str = "",
    ) -> None:
        self._policy, self._drain_timeout_s, self._show, self._program = policy, drain_timeout_s, show, program
        self._end_key = end_key
        self._selector = selectors.DefaultSelector()
        self.members: list[Member] = []

    def add(self, name: str, role: str, config: dict[str, Any]) -> Member:
        """Starts a server."""
        member = Member(name, role, dict(config))
        self.members.append(member)
        self._start(member)
        return member

    def watch(self, descriptor: int, react: Callable[[], None]) -> None:
        """Has `step` call `react` whenever the descriptor can be read; `react` may call `ignore`."""
        self._selector.register(descriptor, selectors.EVENT_READ, react)

    def ignore(self, descriptor: int) -> None:
        """Ends `watch`."""
        self._selector.unregister(descriptor)

    def terminate(self, member: Member) -> None:
        """Sends SIGTERM: a worker drains, and ends immediately on the second one; a dispatcher ends.

        A worker that waits for its restart is started and then drained, so that no later pass waits for it.
        """
        if member.state == WAITING and (member.leaving or member.role == DISPATCHER):
            member.state, member.restart_at = ENDED, None
        elif member.process is not None:
            member.state = DRAINING
            member.process.terminate()
        member.leaving = True

    def step(self, timeout_s: float) -> None:
        """Handles the next events, waiting up to `timeout_s` for them."""
        now = time.monotonic()
        due = [member.restart_at - now for member in self.members if member.restart_at is not None]
        for key, _ in self._selector.select(max(0.0, min([timeout_s, *due]))):
            if self._selector.get_map().get(key.fd) is key:  # else one before it in this list has closed it
                key.data()
        for member in self.members:
            if member.restart_at is not None and time.monotonic() >= member.restart_at:
                member.restarts += 1
                self._start(member)

    def end(self) -> None:
        """Kills what still runs. Must be the last call."""
        running = [(member, member.process) for member in self.members if member.process is not None]
        for _, process in running:
            process.kill()
        for member, process in running:
            process.wait()
            member.process, member.state = None, ENDED
            self._close(member, process)
        self._selector.close()

    def _start(self, member: Member) -> None:
        member.state, member.restart_at, member.detail = STARTING, None, ""
        member.process = started = subprocess.Popen(
            [*self._program, member.role],  # which `ps` shows
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_VARIABLES},
            preexec_fn=before_exec(signal.SIGKILL, own_session=False),  # noqa: PLW1509  (one thread)
        )
        order = {"config": member.config, "drain_timeout_s": self._drain_timeout_s}
        assert started.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end will be noticed, and told
            started.stdin.write(json.dumps(order).encode() + b"\n")
            started.stdin.flush()
        for stream, pipe, take in (
            ("reports", started.stdout, self._take_report),
            ("log", started.stderr, self._take_log),
        ):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            member.lines[stream] = b""
            self.watch(pipe.fileno(), self._reader(member, pipe.fileno(), stream, take))

    def _reader(
        self, member: Member, descriptor: int, stream: str, take: Callable[[Member, bytes], None]
    ) -> Callable[[], None]:
        def read() -> None:
            data = os.read(descriptor, _CHUNK_BYTES)
            *lines, rest = (member.lines[stream] + data).split(b"\n")
            if len(rest) > _LONGEST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            member.lines[stream] = rest
            for line in lines:
                take(member, line)
            if not data:
                self.ignore(descriptor)
                # The reports end with the process: nobody else has that descriptor.
                if stream == "reports":
                    self._bury(member)

        return read

    def _take_log(self, member: Member, line: bytes) -> None:
        if not is_chatter(line):
            self._show(f"[{member.name}] {line.decode(errors='replace')}")

    def _take_report(self, member: Member, line: bytes) -> None:
        fields = json.loads(line)
        if "ready" in fields:
            member.service = fields["ready"]
            back = member.state == STARTING
            if back:
                member.state = READY
            taken = ServiceAddress.parse(member.service)
            # From now on it is started again where the others look for it.
            member.config |= {"port": taken.port, "control_port": taken.control_port}
            self._say(member, f"ready at {member.service}")
            if back and member.leaving:
                self.terminate(member)
        elif "draining" in fields:
            member.state = DRAINING
            self._say(member, f"draining: takes no new work and delivers what it holds{self._limits(member)}")
        else:
            member.detail = fields.get("error") or fields["left"]
            self._say(member, member.detail)

    def _bury(self, member: Member) -> None:
        assert member.process is not None
        process, member.process = member.process, None
        code = member.code = process.wait()
        self._close(member, process)
        told = member.state == DRAINING
        if code == 0 or (told and (code == _LOST or member.role == DISPATCHER)):
            member.state = ENDED
            self._say(member, "has ended")
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        if told:
            member.lost = f"it {how} while draining, so the elements it held are lost"
        now = time.monotonic()
        member.failures.append(now)
        # What was refused once it had run may be the old process's port, still held for a moment.
        decision = decide(self._policy, member.failures, now)
        if code == _REFUSED and not member.service:
            member.state = FAILED
            return
        member.detail = member.detail or how
        member.restart_at = decision.restart_at
        member.state = FAILED if decision.restart_at is None else WAITING
        self._say(member, f"{how}; {decision.reason}")

    def _close(self, member: Member, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with contextlib.suppress(BlockingIOError):  # another process holds it open
            while data := os.read(process.stderr.fileno(), _CHUNK_BYTES):
                member.lines["log"] += data
        for line in filter(None, member.lines["log"].split(b"\n")):
            self._take_log(member, line)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with contextlib.suppress(KeyError):  # it has ended before, or is not read
                self.ignore(pipe.fileno())
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _limits(self, member: Member) -> str:
        """How long it drains, and what ends it earlier; a drain requested by key counts as the first signal."""
        longest = f", for at most {self._drain_timeout_s:g} s"
        again = " again" if member.leaving else ""
        return f"{longest}; {self._end_key}{again} ends it immediately" if self._end_key else longest

    def _say(self, member: Member, text: str) -> None:
        self._show(f"[{member.name}] {text}")
