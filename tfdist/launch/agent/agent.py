"""An agent: dials a launcher until it is there, offers this host, starts a crew of supervisors, and ends with the job.

The supervisors have connections of their own, so the agent has nothing to do while the ranks run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tfdist import __version__
from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.agent import station
from tfdist.launch.agent.station import Orders
from tfdist.launch.wire import introduction, tls
from tfdist.launch.wire.introduction import Conversation
from tfdist.launch.wire.link import AGENT
from tfdist.launch.wire.record import Message, RefusedFrameError
from tfdist.protocol.handshake import RefusedError
from tfdist.system.network import endpoint
from tfdist.system.network.tcp import is_unanswered, keep_alive
from tfdist.system.process import adopt_orphans, end_descendants, heeded, reap, signal_pipe

USAGE_ERROR = 2
INTERRUPTED = 130
WAIT_S = 600.0
# For each step of an attempt to reach the launcher.
_ATTEMPT_S = 10.0
_QUIET_S = 2.0
_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_SEND_TIMEOUT_S = 5.0
_SILENCE_LIMIT_S = 30.0
_LOOK_S = 5.0
# The supervisors see the launcher's connections close, and clean up.
_THEMSELVES_S = 3.0
_PATIENCE_S = 1.0
# After a signal: the launcher ends the whole job, and releases the supervisors here.
_WITHDRAWN_S = 9.0
# After a signal in an elastic job: the ranks reach a commit. Container engines may wait for 30 s.
_LEAVING_S = 25.0
# Supervisors end when the launcher releases them, and then it ends the job; or when they are cut off from it.
_OVER_S = 12.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Post:
    """Where an agent serves, and what it offers; with a `machine` if others may come from the same one."""

    launcher: endpoint.Address
    key: bytes = field(repr=False)
    host: str
    slots: int
    wait_s: float = WAIT_S
    machine: str = ""


def serve(post: Post, say: Callable[[str], None], *, greets: bool = True) -> int:
    """Offers this host to the launcher and runs what that decides. Leaves none of its processes.

    Args:
        post: Where, and what.
        say: Called with lines for the user.
        greets: Whether to say which ranks it runs; what the launcher started itself tells it only what goes wrong.

    Returns:
        The exit status of the job; 1 if the launcher vanished.

    Raises:
        ConfigError: If the launcher has another key or another version of tfdist.
        PeerLostError: If the launcher was not there in time.
    """
    try:
        conversation = _enlist(post, say)
    except KeyboardInterrupt:
        say("interrupted before any rank was started")
        return INTERRUPTED
    return _Service(post, conversation, say, greets).run()


def _enlist(post: Post, say: Callable[[str], None]) -> Conversation:
    where = endpoint.text(post.launcher)
    began, tries, told = time.monotonic(), 0, False
    while True:
        try:
            return _dial(post)
        except RefusedError as refusal:
            raise ConfigError(
                f"the launcher at {where} was refused: {refusal}. Check that the key file is the same on both hosts; "
                "if it is, somebody in between shows another certificate"
            ) from None
        except RefusedFrameError as refusal:
            reason = str(refusal)
        except OSError as error:
            reason = error.strerror or str(error)
        waited_s, tries = time.monotonic() - began, tries + 1
        if waited_s >= post.wait_s:
            raise PeerLostError(
                f"no launcher at {where} within {post.wait_s:g} s: {reason}. Check its address and port, and that no "
                "firewall blocks it, or wait longer with --wait (of tfdistrun: --start-timeout)"
            )
        if waited_s >= _QUIET_S and not told:
            say(f"waiting up to {post.wait_s:g} s for the launcher at {where} ({reason})")
            told = True
        time.sleep(min(_RETRY_S * tries, _LONGEST_RETRY_S, max(0.0, post.wait_s - waited_s)))


def _dial(post: Post) -> Conversation:
    link = tls.dial(post.launcher, AGENT, min(_ATTEMPT_S, post.wait_s))
    try:
        keep_alive(link.connection, _SILENCE_LIMIT_S)
        conversation = introduction.prove(link, post.key, _ATTEMPT_S)
        python = ".".join(platform.python_version_tuple()[:2])
        conversation.send(
            _SEND_TIMEOUT_S,
            "offer",
            host=post.host,
            slots=post.slots,
            version=__version__,
            python=python,
            machine=post.machine,
        )
    except BaseException:
        link.close()
        raise
    return conversation


class _Service:
    """From the offer to the end of the job: one thread, one loop over the launcher's connection and signals."""

    def __init__(self, post: Post, conversation: Conversation, say: Callable[[str], None], greets: bool) -> None:
        self._post, self._conversation, self._say, self._greets = post, conversation, say, greets
        # The crews that run, and whether there ever was one.
        self._crews: set[int] = set()
        self._served = False
        # Whether the job is elastic: it may need this host again, and its ranks leave at a commit.
        self._stays = False
        self._status_of_crews = 0
        self._is_there = True
        self._signum = 0
        # When to stop waiting for what others do, and why.
        self._deadline: float | None = None
        self._status: int | None = None

    def run(self) -> int:
        adopt_orphans()
        wake = signal_pipe((*heeded(_SIGNALS), signal.SIGCHLD))
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._conversation.link.connection, selectors.EVENT_READ, self._conversation)
            while self._status is None:
                for key, _ in selector.select(self._left_s()):
                    if key.data is None:
                        self._on_signals(os.read(wake, 64))
                    elif not self._listen():
                        selector.unregister(key.fileobj)
                late = self._deadline is not None and time.monotonic() >= self._deadline
                # Supervisors notice a launcher that is cut off; without them, the kernel knows what it owes.
                cut_off = self._is_waiting and is_unanswered(self._conversation.link.connection, _SILENCE_LIMIT_S)
                if self._status is None and (late or cut_off):
                    self._give_up()
        self._conversation.link.close()
        if not end_descendants(os.getpid(), _PATIENCE_S):
            self._say("some processes of the job cannot be killed; look for state D in `ps`")
        reap()
        return self._status

    def _give_up(self) -> None:
        if self._is_there and not self._signum:
            self._say(f"the launcher at {endpoint.text(self._post.launcher)} does not answer any more")
        self._status = 128 + self._signum if self._signum else 1

    def _left_s(self) -> float | None:
        if self._deadline is None:
            return _LOOK_S if self._is_waiting else None
        return max(0.0, self._deadline - time.monotonic())

    @property
    def _is_waiting(self) -> bool:
        """Whether the job may need this host again, for which nothing runs here now."""
        return self._stays and self._is_there and not self._crews and not self._signum

    def _listen(self) -> bool:
        """Handles what the launcher says; whether it is still there."""
        try:
            for message in self._conversation.receive():
                self._obey(message)
        except RefusedFrameError as refusal:
            self._say(f"the launcher at {endpoint.text(self._post.launcher)} sent an invalid message: {refusal}")
        except (EOFError, OSError):
            if self._status is None and not self._signum:
                self._say(
                    f"the launcher at {endpoint.text(self._post.launcher)} is gone; ending the ranks of this host"
                )
        else:
            return True
        self._is_there = False
        self._deadline = time.monotonic() + (_THEMSELVES_S if self._served else 0.0)
        return False

    def _obey(self, message: Message) -> None:
        if message.kind == "crew" and not self._signum:
            orders = Orders.read(message.fields, self._post.launcher, self._fingerprint())
            if self._greets:
                where = endpoint.text(self._post.launcher)
                self._say(f"{self._post.host} runs {orders.ranks} for the launcher at {where}")
            if not os.path.isdir(orders.folder):
                here = os.getcwd()
                self._tell("remark", text=f"there is no folder {orders.folder} there, so its ranks start in {here}")
            self._crews.add(station.start(orders, self._conversation.link))
            self._served, self._stays, self._deadline = True, message.fields["elastic"], None
        elif message.kind == "over":
            if message.fields["reason"]:
                self._say(message.fields["reason"])
            self._status = message.fields["status"] & 0xFF

    def _fingerprint(self) -> bytes:
        link = self._conversation.link
        assert isinstance(link, tls.TlsLink)
        return link.fingerprint()

    def _on_signals(self, numbers: bytes) -> None:
        for signum in numbers:
            if signum == signal.SIGCHLD:
                self._look_at_crew()
            elif signum in _SIGNALS:
                self._withdraw(signum)

    def _withdraw(self, signum: int) -> None:
        if self._signum or not self._served:
            self._status = 128 + signum
            self._tell("withdrawn", signal=signum)
            return
        self._signum = signum
        name = signal.Signals(signum).name
        self._tell("withdrawn", signal=signum)
        if self._stays and self._is_there and self._crews:
            self._say(f"{name}: the ranks of this host leave at their next commit, in {_LEAVING_S:g} s at most")
            self._deadline = time.monotonic() + _LEAVING_S
            return
        self._say(f"{name}: ending the ranks of this host")
        self._deadline = time.monotonic() + (_WITHDRAWN_S if self._crews else 0.0)
        for crew in self._crews:
            with contextlib.suppress(ProcessLookupError):
                os.kill(crew, signal.SIGTERM)

    def _look_at_crew(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if not process:
                    return
                if process in self._crews:
                    self._crews.remove(process)
                    code = os.waitstatus_to_exitcode(status)
                    self._status_of_crews = max(self._status_of_crews, code if code >= 0 else 128 - code)
                    if self._crews:
                        continue
                    self._tell("crew_ended", status=self._status_of_crews)
                    left_s = (_PATIENCE_S if self._signum else _OVER_S) if self._is_there else 0.0
                    self._deadline = None if self._is_waiting else time.monotonic() + left_s

    def _tell(self, kind: str, **fields: object) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, which reading shows
            self._conversation.send(_SEND_TIMEOUT_S, kind, **fields)


def say_on_stderr(program: str) -> Callable[[str], None]:
    """Prints lines as `program`."""
    return lambda text: print(f"{program}: {text}", file=sys.stderr, flush=True)
