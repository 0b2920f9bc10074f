"""The supervisor of one rank: runs between mpirun and the user's command, and reports to the launcher.

mpirun starts this file by path, in isolated mode: this is fast, and no user file shadows its modules.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    # At the end, so that packages installed next to tfdist do not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.launch.job.pulse import Pulse
from tfdist.launch.start import job_folder, place
from tfdist.launch.supervisor import crew, news, surrounding, tail
from tfdist.launch.supervisor.news import NewsPipe
from tfdist.launch.wire.call import Errand
from tfdist.launch.wire.link import RANK, Link
from tfdist.launch.wire.record import (
    TO_LAUNCHER,
    TO_RANK,
    FrameBuffer,
    Message,
    Opener,
    RefusedFrameError,
    Sealer,
)
from tfdist.launch.wire.ticket import Ticket
from tfdist.protocol import backup, commit_file, member
from tfdist.protocol.handshake import derived
from tfdist.system import program
from tfdist.system.network.tcp import is_unanswered, keep_alive
from tfdist.system.process import (
    adopt_orphans,
    before_exec,
    descendants,
    die_with_parent,
    end_descendants,
    reap_orphans,
    send,
    signal_pipe,
)
from tfdist.system.rank import job_place
from tfdist.system.terminal.line import REDRAW_S, LineSplitter, Piece
from tfdist.system.terminal.readiness import readable

CONNECT_TIMEOUT_S = 10.0
# Until the launcher has sent its own limit.
_FIRST_SILENCE_LIMIT_S = 30.0
# The name of the pipe for the result of a `tfdist.run` rank, next to "stdout" and "stderr".
RESULT = "result"
_READ_BYTES = 1 << 15
# With this much unsent output the rank's pipes are no longer read: it waits, as for any slow reader.
_UNSENT_BYTES = 4 << 20
# How long a rank's child processes may take to exit after it (multiprocessing's resource tracker cleans up then).
_PATIENCE_S = 1.0
# The same if other ranks wait to continue without this one.
_SHORT_PATIENCE_S = 0.1
# mpirun kills us one second after its SIGTERM; by then the rank and what it started must be gone.
_TERM_S = 0.4
# A rank that would leave at a commit cannot reach one in that time, and the record must not be late.
_ELASTIC_TERM_S = 0.05
# The launcher is gone; the guard waits a little longer before it kills us too.
_ABANDONED_S = 1.0
# How many signs of life a rank sends within the launcher's limit of silence.
_SIGNS_OF_LIFE = 5
_MEMBER_KINDS = {
    member.JOINED: "joined",
    member.COMMITTED: "committed",
    member.STALLED: "stalled",
    member.LEFT: "left",
    member.RETIRED: "retired",
    member.PARTED: "parted",
    member.OPEN: "open",
    member.CLOSED: "closed",
}
# What the ranks prove to each other that they have; not the key of this connection.
_RANKS_KEY = "ranks"


class Phase(enum.IntEnum):
    """The phase of a rank and its supervisor; it only moves forward, and may skip phases."""

    WAITING = 0  # for the command, and the function it calls
    RUNNING = 1
    ENDED = 2  # reading the rest of its output
    REPORTED = 3  # its record is being sent, after its output
    TIDY = 4  # the launcher has the record, and no child process of the rank is left
    ABANDONED = 5  # the launcher is gone
    CUT_OFF = 6  # this host or the launcher's is disconnected
    RELEASED = 7  # the launcher has released us


class Supervisor:
    """One thread with one loop over the rank's pipes, the launcher's connection and signals."""

    def __init__(self, ticket: Ticket, rank: int, link: Link, environment: Mapping[str, str]) -> None:
        self._rank, self._link, self._environment, self._job = rank, link, environment, ticket.job
        self._sealer = Sealer(ticket.job, ticket.key, TO_LAUNCHER, rank)
        self._opener = Opener(ticket.job, ticket.key, TO_RANK, range(rank, rank + 1))
        self._buffer = FrameBuffer()
        self._unsent = bytearray()
        # Messages in order with the output, which waits for room at the launcher; all others are sent at once.
        self._held: deque[tuple[int, str, dict[str, Any]]] = deque()
        self._held_bytes = self._window = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._errand: Errand | None = None
        self._command: tuple[str, ...] | None = None
        self._splitters = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._tails = {"stdout": b"", "stderr": b""}
        self._pipes: dict[str, int] = {}
        self._phase = Phase.WAITING
        # Whether we sent the rank a signal, so that its exit is not its own failure.
        self._told = False
        # Whether its pipes are not being read.
        self._throttled = False
        self._kill_at = self._drain_until = math.inf
        self._pulse: Pulse | None = None
        self._looked_at = self._shown_at = 0.0
        self._segments = job_folder.segments(ticket.job, rank)
        self._elastic = False
        self._member: int | None = None
        self._reported = b""
        self._news: NewsPipe | None = None
        self._ranks_key = derived(ticket.key, _RANKS_KEY)
        self._commits: Path | None = None
        self._folder_hold = -1
        self._leave: Path | None = None
        # What the release says: whether to remove the commits, and what to do with the backup.
        self._forget, self._backup = False, ""
        self._parent = os.getppid()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Returns when the launcher releases us; 1 if the launcher or mpirun vanished.

        In an elastic job that happens while other ranks run, if this rank has failed: they notice our exit, and because
        our status is 0, mpirun does not kill them.
        """
        wake = self._catch_signals()
        self._selector.register(wake, selectors.EVENT_READ, "signal")
        self._selector.register(self._link.connection, selectors.EVENT_READ, "launcher")
        self._send("hello", host=os.uname().nodename, pid=os.getpid())
        while self._phase < Phase.ABANDONED:
            for key, mask in self._selector.select(self._timeout()):
                if key.data == "signal":
                    self._on_signals(os.read(wake, 64))
                elif key.data == "launcher":
                    self._on_launcher(mask)
                elif callable(key.data):
                    key.data()
                else:
                    self._on_output(key.data)
            self._on_time()
        abandoned = self._phase != Phase.RELEASED
        if abandoned and self._commits is not None and member.backup(self._environment) is None:
            # At once: mpirun's daemon, which is cut off as well, may kill us before our rank is gone.
            shutil.rmtree(self._commits, ignore_errors=True)
        end_descendants(os.getpid(), _ABANDONED_S if abandoned else _PATIENCE_S)
        shutil.rmtree(self._segments, ignore_errors=True)
        if abandoned:  # the guard may be gone too
            shutil.rmtree(job_folder.session(self._job), ignore_errors=True)
        if self._commits is not None:
            self._settle(self._commits, abandoned)
        if self._phase == Phase.CUT_OFF:
            self._end_daemon()
        return 1 if abandoned else 0

    def _enter(self, phase: Phase) -> None:
        """The only place where the phase changes."""
        self._phase = max(self._phase, phase)

    def _end_daemon(self) -> None:
        """Kills mpirun's daemon, which would try to reach mpirun for 15 minutes. Slurm's own daemon is left alone."""
        starter = place.starter(os.environ)
        if os.getppid() == self._parent and starter is not None and starter.own_daemons:
            os.kill(self._parent, signal.SIGTERM)

    def _catch_signals(self) -> int:
        wake = signal_pipe((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
        # PR_SET_PDEATHSIG refers to the thread that started us; _on_signals checks whether the process is gone too.
        die_with_parent(signal.SIGHUP, self._parent)
        return wake

    def _timeout(self) -> float | None:
        splitters = () if self._throttled else self._splitters.values()
        times = [due for splitter in splitters if (due := splitter.due()) is not None]
        if self._pulse is not None:
            times.append(self._looked_at + self._pulse.step_s)
        first = min(self._kill_at, self._drain_until, *times)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    def _on_signals(self, numbers: bytes) -> None:
        for signum in numbers:
            if signum in (signal.SIGTERM, signal.SIGINT):
                self._forward(signum)
                if signum == signal.SIGTERM:
                    self._kill_at = time.monotonic() + (_ELASTIC_TERM_S if self._elastic else _TERM_S)
            elif signum == signal.SIGHUP and os.getppid() != self._parent:
                self._forward(signal.SIGTERM)
                self._kill_at = time.monotonic() + _TERM_S
        self._look_at_child()
        reap_orphans(self._child)

    def _on_time(self) -> None:
        now = time.monotonic()
        self._stay_in_touch(now)
        for stream, splitter in self._splitters.items():
            if (due := splitter.due()) is not None and due <= now and not self._has_more(stream):
                self._send_pieces(stream, splitter.flush(now))
        if self._kill_at <= now:
            self._kill_at = math.inf
            send(descendants(os.getpid()), signal.SIGKILL)
        if self._phase == Phase.ENDED:
            if self._throttled:
                self._drain_until = now + _PATIENCE_S
            elif not self._pipes or self._drain_until <= now:
                self._report()
        if self._phase == Phase.REPORTED and not self._unsent and not self._held:
            self._enter(Phase.TIDY)
            end_descendants(os.getpid(), _PATIENCE_S)

    def _has_more(self, stream: str) -> bool:
        """Whether the rest of a line may be in the pipe already: then the delay is ours, not the rank's."""
        pipe = self._pipes.get(stream)
        return self._throttled or (pipe is not None and readable(pipe))

    # The rank's process

    def _start_when_ready(self) -> None:
        if self._command is None or self._phase != Phase.WAITING:
            return
        if self._errand is None:
            self._start(self._command)
        elif self._errand.ready:
            reader, writer = os.pipe()
            given = (self._errand.function, writer)
            if self._start((*self._command, *map(str, given)), given):
                self._pipes[RESULT] = reader
                self._selector.register(reader, selectors.EVENT_READ, RESULT)
            os.close(writer)

    def _start(self, command: Sequence[str], given: Sequence[int] = ()) -> bool:
        environment = surrounding.of_rank(self._environment)
        environment |= job_folder.segment_variables(self._segments, environment)
        pipes = self._prepare_membership()
        ends = [pipe.rank for pipe in pipes]
        environment |= member.variables(*pipes, self._commits, self._leave, self._link.own_address)
        if self._elastic:
            # Only ranks are elastic: whatever else this job starts need not import Keras.
            environment["TFDIST_ELASTIC"] = "1"
        try:
            self._child = subprocess.Popen(
                command,
                env=environment,
                pass_fds=(*given, *ends, *place.descriptors(os.environ)),
                # mpirun passes its input on to rank 0 but never closes it: a program that reads all of it would hang.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                preexec_fn=before_exec(signal.SIGKILL, own_session=False),  # noqa: PLW1509  (one thread)
            )
        except (OSError, subprocess.SubprocessError) as error:
            why = program.obstacle(command[0], error) if isinstance(error, OSError) else error
            line = f"{command[0]} cannot be started on {os.uname().nodename}: {why}"
            self._send_pieces("stderr", self._splitters["stderr"].feed(line.encode() + b"\n", time.monotonic()))
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._enter(Phase.REPORTED)
            self._hold(0, "finished", code=code, signal=None, told=False, tail=[line])
            return False
        finally:
            for end in ends:
                os.close(end)
        self._enter(Phase.RUNNING)
        for stream in self._splitters:
            self._pipes[stream] = getattr(self._child, stream).fileno()
            self._selector.register(self._pipes[stream], selectors.EVENT_READ, stream)
        self._send("started", pid=self._child.pid)
        return True

    def _prepare_membership(self) -> tuple[member.Pipe, member.Pipe]:
        """Returns the pipes on which the rank reports its events, and receives which ranks have exited."""
        self._member, writer = os.pipe()
        self._selector.register(self._member, selectors.EVENT_READ, self._read_membership)
        self._news = NewsPipe(self._selector)
        return member.Pipe(writer, self._member), self._news.pipe

    def _read_membership(self) -> None:
        """Handles the events that the rank has reported."""
        while self._member is not None and readable(self._member):
            data = os.read(self._member, _READ_BYTES)
            *lines, self._reported = (self._reported + data).split(b"\n")
            for line in lines:
                if (kind := _MEMBER_KINDS.get(line + b"\n")) is not None:
                    self._send(kind)
                elif line.startswith(member.LISTENING):
                    with contextlib.suppress(ValueError):  # another program has written it
                        self._send("listening", **dict(zip(("epoch", "address"), member.listening(line), strict=True)))
            if not data:
                self._selector.unregister(self._member)
                os.close(self._member)
                self._member = None

    def _forward(self, signum: int) -> None:
        self._look_at_child()
        if self._child is None or self._child.returncode is not None:
            return
        self._told = True
        if signum == signal.SIGKILL:
            send(descendants(os.getpid()), signum)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signum)

    def _look_at_child(self) -> None:
        if self._phase != Phase.RUNNING or self._child is None or self._child.poll() is None:
            return
        self._enter(Phase.ENDED)
        self._drain_until = time.monotonic() + _PATIENCE_S
        failed = self._child.returncode != 0 and not self._told
        if failed and self._errand is not None:
            self._errand.fail()
        # At once: the record comes after the output, which may wait for its reader.
        self._send("ended", failed=failed)
        if failed and self._elastic:
            # Otherwise child processes would hold the rank's pipes open, and the others would wait for its record.
            end_descendants(os.getpid(), _SHORT_PATIENCE_S)

    def _on_output(self, stream: str) -> None:
        data = os.read(self._pipes[stream], _READ_BYTES)
        if not data:
            self._selector.unregister(self._pipes.pop(stream))
            return
        if stream == RESULT:
            assert self._errand is not None
            self._errand.take(data)
            return
        self._tails[stream] = (self._tails[stream] + data)[-tail.BYTES :]
        self._send_pieces(stream, self._splitters[stream].feed(data, time.monotonic()))

    def _report(self) -> None:
        assert self._child is not None
        self._read_membership()
        for stream, splitter in self._splitters.items():
            self._send_pieces(stream, splitter.close(time.monotonic()))
        for descriptor in self._pipes.values():
            self._selector.unregister(descriptor)
        self._pipes.clear()
        self._drain_until = math.inf
        self._enter(Phase.REPORTED)
        if self._errand is not None and not self._errand.answered and not self._told:
            self._errand.fail()
        status = self._child.returncode
        self._hold(
            0,
            "finished",
            code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            told=self._told,
            tail=tail.lines(self._tails["stderr"]) or tail.lines(self._tails["stdout"]),
        )

    # The launcher's connection

    def _send_pieces(self, stream: str, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            text = piece.text.decode(errors="surrogateescape")
            self._hold(piece.size, "output", stream=stream, text=text, end=piece.end)

    def _hold(self, size: int, kind: str, **fields: Any) -> None:
        """Sends a message that uses this much of the launcher's window, after all earlier output."""
        self._held.append((size, kind, fields))
        self._held_bytes += size
        self._pass_on()

    def _pass_on(self) -> None:
        while self._held and (self._window > 0 or not self._held[0][0]):
            size, kind, fields = self._held.popleft()
            self._held_bytes -= size
            self._window -= size
            self._unsent += self._sealer.seal(kind, **fields)
        self._write()

    def _send(self, kind: str, **fields: Any) -> None:
        self._unsent += self._sealer.seal(kind, **fields)
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._link.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._abandon()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._link.connection, events, "launcher")
        if self._throttled != (len(self._unsent) + self._held_bytes > _UNSENT_BYTES):
            self._throttled = not self._throttled
            for stream, descriptor in self._pipes.items():
                if self._throttled:
                    self._selector.unregister(descriptor)
                else:
                    self._selector.register(descriptor, selectors.EVENT_READ, stream)
                    if stream in self._splitters:
                        self._splitters[stream].resume(time.monotonic())

    def _on_launcher(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write()
        if not mask & selectors.EVENT_READ or self._phase >= Phase.ABANDONED:
            return
        try:
            data = self._link.receive(_READ_BYTES)
            self._buffer.feed(data)
            while (frame := self._buffer.take()) is not None:
                self._obey(self._opener.open(*frame)[1])
        except BlockingIOError:
            return
        except RefusedFrameError as refusal:
            print(f"the supervisor of rank {self._rank} refused what tfdistrun sent: {refusal}", file=sys.stderr)
            data = b""
        except OSError:
            data = b""
        if not data:
            self._abandon()

    def _obey(self, message: Message) -> None:
        if message.kind == "run" and self._command is None:
            self._prepare(message.fields)
        elif message.kind == "more":
            self._window += message.fields["size"]
            self._pass_on()
        elif message.kind == "call" and self._errand is None:
            self._errand = Errand(message.fields, self._send)
        elif message.kind == "part" and self._errand is not None:
            self._errand.add(message.fields["data"])
        elif message.kind == "leave" and self._leave is not None:
            with self._told_of(f"could not ask rank {self._rank} to leave"):
                self._leave.touch()
        elif message.kind in news.KINDS and self._news is not None:
            self._news.tell(news.line(message, self._job, self._rank, self._ranks_key))
        elif message.kind == "signal":
            self._forward(message.fields["number"])
        elif message.kind == "release":
            self._forget, self._backup = message.fields["forget"], message.fields["backup"]
            self._enter(Phase.RELEASED)
        self._start_when_ready()

    def _prepare(self, fields: Mapping[str, Any]) -> None:
        self._command = tuple(fields["command"])
        self._elastic = fields["elastic"]
        self._make_folder(fields["commits"])
        # Another generation uses another name.
        self._leave = None if self._commits is None else self._commits / f"leave-{self._job}"
        self._watch(fields["silence_limit"])
        self._window = fields["window"]
        for stream in self._splitters.keys() & set(fields["redrawn"]):
            self._splitters[stream].progress_s = REDRAW_S

    def _make_folder(self, name: str) -> None:
        """The folder for commits, if there is one."""
        if not name:
            return
        try:
            self._commits, self._folder_hold = commit_file.make_folder(job_folder.MEMORY, name)
        except OSError as error:
            print(f"rank {self._rank} keeps no commits in {job_folder.MEMORY}: {error.strerror}", file=sys.stderr)

    def _settle(self, commits: Path, abandoned: bool) -> None:
        """Saves or removes the commits on this host."""
        place = member.backup(self._environment)
        if place is not None and self._backup == "drop":
            with self._told_of(f"rank {self._rank} could not remove the commits in {place}"):
                backup.drop(place, self._environment)
        elif place is not None and self._backup == "keep":
            self._keep(commits, place)
        elif abandoned and not commit_file.is_last(self._folder_hold):
            return  # another supervisor of this host does it, whose rank may still commit
        elif place is not None and abandoned:
            with contextlib.suppress(OSError):  # nobody is left to report to
                backup.keep(commits, place, self._environment)
        if self._forget or abandoned:
            shutil.rmtree(commits, ignore_errors=True)

    @contextlib.contextmanager
    def _told_of(self, what: str) -> Iterator[None]:
        """Reports a file error, which must not count as a lost launcher."""
        try:
            yield
        except OSError as error:
            print(f"{what}: {error}", file=sys.stderr)

    def _keep(self, commits: Path, place: str) -> None:
        try:
            names, error = backup.keep(commits, place, self._environment), ""
        except OSError as trouble:
            names, error = [], str(trouble)
        with contextlib.suppress(OSError):  # the launcher is gone: there is nobody to report to
            told = bytes(self._unsent) + self._sealer.seal("kept", names=names, error=error)
            self._link.send_all(told, CONNECT_TIMEOUT_S)

    def _watch(self, limit_s: float) -> None:
        keep_alive(self._link.connection, limit_s)
        self._looked_at = self._shown_at = time.monotonic()
        self._pulse = Pulse(limit_s)
        self._pulse.watch(self._rank)

    def _stay_in_touch(self, now: float) -> None:
        """Shows the launcher that this host is up, and checks whether the launcher's host still is."""
        pulse = self._pulse
        if pulse is None or now < self._looked_at + pulse.step_s:
            return
        if not is_unanswered(self._link.connection, pulse.step_s):
            pulse.hear(self._rank)
        lost = pulse.advance(now - self._looked_at)
        self._looked_at = now
        if lost:
            self._abandon(Phase.CUT_OFF)
        # Unsent data shows that this host is up as soon as it arrives; more would only pile up.
        elif now - self._shown_at >= pulse.limit_s / _SIGNS_OF_LIFE and not self._unsent:
            self._shown_at = now
            self._send("alive")

    def _abandon(self, phase: Phase = Phase.ABANDONED) -> None:
        """The launcher is gone: terminate the rank."""
        self._enter(phase)
        if self._phase != Phase.RELEASED:
            self._forward(signal.SIGTERM)


def supervise(environment: Mapping[str, str]) -> int:
    """Runs the supervisor of the rank that the environment describes; returns its exit status."""
    adopt_orphans()
    ticket = Ticket.read(environment)
    environment = {**environment, **place.variables(environment)}
    rank = int(job_place.rank(environment))
    try:
        link = _dial(ticket)
        keep_alive(link.connection, _FIRST_SILENCE_LIMIT_S)
    except (OSError, RefusedFrameError) as error:
        print(
            f"rank {rank} on {os.uname().nodename} cannot reach tfdistrun at {ticket.address}: "
            f"{getattr(error, 'strerror', None) or error}; check firewalls, or choose a network with "
            "--network-interfaces",
            file=sys.stderr,
        )
        return 1
    return Supervisor(ticket, rank, link, environment).run()


def _dial(ticket: Ticket) -> Link:
    """Connects to the launcher. Raises OSError, or RefusedFrameError if it shows another certificate."""
    address = (ticket.host, ticket.port)
    if not ticket.fingerprint:
        return Link(socket.create_connection(address, CONNECT_TIMEOUT_S))
    from tfdist.launch.wire import tls  # takes 10 ms, and a job on one machine does not need it

    return tls.dial(address, RANK, CONNECT_TIMEOUT_S, ticket.fingerprint)


def main(words: Sequence[str]) -> int:
    """Supervises one rank, or with arguments all ranks of this host, as `Crew` describes them."""
    if not words:
        return supervise(os.environ)
    adopt_orphans()
    return crew.run(crew.Crew.parse(words), supervise, os.environ)


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    # Python's normal exit takes 15 ms, and the ranks that continue without this one would wait for it.
    os._exit(ended)
