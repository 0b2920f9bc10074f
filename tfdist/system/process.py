"""Linux process control that Python lacks: parent-death signals, subreapers, killing process trees."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# How long to wait for a killed child to exit.
_KILLED_S = 2.0
# Loaded at import and not after fork, where taking the loader's lock could deadlock.
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def die_with_parent(signum: int, parent: int) -> None:
    """Makes the kernel send this process `signum` when its parent (the thread that forked it) exits."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    # The parent may have exited before the line above; then no signal would ever arrive.
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def machine(system: Path = Path("/proc")) -> str:
    """Identifies host, kernel and process namespace: if these match, paths in /proc do too. Empty if unknown."""
    try:
        boot = (system / "sys/kernel/random/boot_id").read_text().strip()
        return f"{os.uname().nodename} {boot} {os.readlink(system / 'self/ns/pid')}"
    except OSError:
        return ""


def call_this_process(name: str) -> None:
    """Sets the name that `top` and `ps -o comm` show instead of the interpreter; at most 15 bytes."""
    with contextlib.suppress(OSError):  # without /proc it keeps its name
        with open("/proc/self/comm", "w") as file:
            file.write(name)


def heeded(signals: Iterable[int]) -> list[int]:
    """The subset of `signals` to catch: signals ignored on purpose, as by nohup and a shell's `&`, stay ignored.

    SIGTERM is always caught, because our own processes terminate each other with it.
    """
    return [each for each in signals if each == signal.SIGTERM or signal.getsignal(each) is not signal.SIG_IGN]


def signal_pipe(signals: Iterable[int]) -> int:
    """A descriptor that receives the number of each of these signals as a byte; they have no other effect then."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in signals:
        signal.signal(signum, lambda *_: None)  # the number is written only for signals with a Python handler
    return reader


@contextlib.contextmanager
def caught(signals: Iterable[int], handle: Callable[[int], object]) -> Iterator[None]:
    """Calls `handle` with each of these signals, from the handler; restores the previous handlers afterwards.

    Ignored signals stay ignored.
    """
    before = {signum: signal.signal(signum, lambda number, _: handle(number)) for signum in heeded(signals)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process, so that it does not lose track of daemons."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def before_exec(signum: int, *, own_session: bool) -> Callable[[], None]:
    """A `preexec_fn`: the child gets `signum` when we die, and does not receive the terminal's signals."""
    parent = os.getpid()

    def prepare() -> None:
        if own_session:
            os.setsid()
        else:
            os.setpgid(0, 0)
        die_with_parent(signum, parent)

    return prepare


def parents() -> dict[int, int]:
    """The parent of each living (not zombie) process."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # exited between listing and reading
        # The name in parentheses may contain spaces and parentheses: the fields begin after the last one.
        state, parent = stat[stat.rindex(b")") + 2 :].split()[:2]
        if state not in (b"Z", b"X"):
            found[int(entry)] = int(parent)
    return found


def descendants(root: int) -> list[int]:
    """The living (not zombie) processes below `root`, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
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
    """Reaps adopted zombies; only for callers that no longer wait for children of their own."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_orphans(child: subprocess.Popen[bytes] | None) -> None:
    """Reaps adopted zombies, but not `child`, whose status is left for `poll`."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if child is None or ended.si_pid != child.pid:
                os.waitpid(ended.si_pid, 0)
            else:
                child.poll()


def end_child(child: subprocess.Popen[Any], patience_s: float, signum: int = signal.SIGTERM) -> None:
    """Ends a child with `signum`, and with SIGKILL after `patience_s`.

    Ctrl-C in the meantime is passed on: a launcher then no longer waits for its ranks.
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
    """Kills a child and the process group it leads, if any. One that is stuck in the kernel is reaped later."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # it leads none
        child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_KILLED_S)


def end_descendants(root: int, patience_s: float, kill_s: float = 2.0) -> bool:
    """Terminates all below `root`: SIGTERM, and after `patience_s` SIGKILL. True if none is left."""
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
