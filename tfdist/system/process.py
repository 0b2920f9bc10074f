"""Linux process control that Python lacks: parent-death signals, subreaping, ending trees. No job is known."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# How long a killed child may take to be gone.
_KILLED_S = 2.0
# Loaded at import, not after fork, where taking the loader's lock could deadlock.
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def die_with_parent(signum: int, parent: int) -> None:
    """Has the kernel send this process `signum` when its parent (the thread that forked it) ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    # The parent may have ended before the line above; then no signal would ever come.
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def call_this_process(name: str) -> None:
    """What `top` and `ps -o comm` show instead of the interpreter; 15 bytes count."""
    with contextlib.suppress(OSError):  # without /proc it keeps its name
        with open("/proc/self/comm", "w") as file:
            file.write(name)


def heeded(signals: Iterable[int]) -> list[int]:
    """Those of `signals` to be caught: what the caller ignores on purpose, as nohup and a shell's `&` do, stays so.

    SIGTERM is what our own processes end each other by.
    """
    return [each for each in signals if each == signal.SIGTERM or signal.getsignal(each) is not signal.SIG_IGN]


def signal_pipe(signals: Iterable[int]) -> int:
    """A descriptor on which the number of each of these signals appears as a byte; they do nothing else any more."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in signals:
        signal.signal(signum, lambda *_: None)  # only a signal with a Python handler has its number written
    return reader


@contextlib.contextmanager
def caught(signals: Iterable[int], handle: Callable[[int], object]) -> Iterator[None]:
    """Has `handle` called with each of these signals, inside the handler; those before get them again afterwards.

    What is ignored, stays ignored.
    """
    before = {signum: signal.signal(signum, lambda number, _: handle(number)) for signum in heeded(signals)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def adopt_orphans() -> None:
    """Makes descendants whose parent ends children of this process, so that no daemonised one is lost from sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def before_exec(signum: int, *, own_session: bool) -> Callable[[], None]:
    """A `preexec_fn`: the child gets `signum` when we die, and is out of reach of the terminal's signals."""
    parent = os.getpid()

    def prepare() -> None:
        if own_session:
            os.setsid()
        else:
            os.setpgid(0, 0)
        die_with_parent(signum, parent)

    return prepare


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # ended between listing and reading
        # The name in parentheses may hold blanks and parentheses: the fields begin after the last one.
        state, parent = stat[stat.rindex(b")") + 2 :].split()[:2]
        if state not in (b"Z", b"X"):
            parents[int(entry)] = int(parent)
    return parents


def descendants(root: int) -> list[int]:
    """The living (not zombie) processes below `root`, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, [])]
        found += level
    return found


def send(pids: Iterable[int], signum: int) -> None:
    """Sends a signal to each of `pids` that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def reap() -> None:
    """Collects the adopted zombies; only for callers that no longer wait for a child of their own."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_orphans(child: subprocess.Popen[bytes] | None) -> None:
    """Collects the adopted zombies beside `child`, whose status stays for `poll`."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if child is None or ended.si_pid != child.pid:
                os.waitpid(ended.si_pid, 0)
            else:
                child.poll()


def end_child(child: subprocess.Popen[Any], patience_s: float, signum: int = signal.SIGTERM) -> None:
    """Ends a child by `signum`, and by force after `patience_s`.

    Ctrl-C while it ends is passed on: a launcher then no longer waits for its ranks.
    """
    child.send_signal(signum)
    while child.poll() is None:
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            kill(child)
            return
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)


def kill(child: subprocess.Popen[Any]) -> None:
    """Ends a child by force, with the group that it leads, if any. One that hangs in the kernel is reaped later."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # it leads none
        child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_KILLED_S)


def end_descendants(root: int, patience_s: float, kill_s: float = 2.0) -> bool:
    """Ends all below `root`: `patience_s` to go by themselves or by SIGTERM, then SIGKILL. True if none is left."""
    for signum, seconds in ((0, patience_s / 2), (signal.SIGTERM, patience_s / 2), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + seconds
        while pids := descendants(root):
            if signum:
                send(pids, signum)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.01)
        if not pids:
            return True
    return False
