"""Runs a Docker engine for as long as its standard input is open, and leaves nothing of it behind. No test of its own.

    python docker_engine.py FOLDER

It prints `DOCKER_HOST=...` when the engine answers. Images and the cache of builds stay in FOLDER. The end of the
standard input ends it, so that no engine outlives the tests, whatever becomes of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 60
END_SECONDS = 60
POLL_SECONDS = 0.1
NEEDED = {"dockerd": "docker.io", "iptables": "iptables", "iptables-save": "iptables", "ip": "iproute2"}
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def lacks() -> str:
    """What is missing for an engine to be started here; empty if nothing is."""
    if os.geteuid() != 0:
        return "no Docker engine answers, and only root can start one"
    missing = sorted({package for name, package in NEEDED.items() if shutil.which(name) is None})
    return f"no Docker engine answers, and to start one these are missing: {', '.join(missing)}" if missing else ""


@contextlib.contextmanager
def network_restored() -> Iterator[None]:
    """An engine leaves its bridge, its rules and forwarding behind."""
    rules = _rules()
    forward = _FORWARD.read_text()
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", "docker0"], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["iptables-restore"], input=rules + emptied(_rules(), rules), text=True, check=True)
        _FORWARD.write_text(forward)


def _rules() -> str:
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


def emptied(after: str, before: str) -> str:
    """The tables of `after` that `before` does not have, with nothing in them: restoring `before` would leave them."""
    lines = []
    known = {line for line in before.splitlines() if line.startswith("*")}
    for table in after.split("COMMIT\n"):
        words = [line for line in table.splitlines() if line.startswith(("*", ":"))]
        if words and words[0] not in known:
            chains = (line.split() for line in words[1:])
            lines += [words[0], *(f"{name} ACCEPT [0:0]" for name, policy, _ in chains if policy != "-"), "COMMIT"]
    return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[str]:
    """A running engine's address."""
    with tempfile.TemporaryDirectory(prefix="engine-") as short, network_restored():
        # The path of a socket has room for 107 characters, so it is not below `folder`.
        host = f"unix://{short}/docker.sock"
        own = ["--exec-root", f"{short}/exec", "--pidfile", f"{short}/pid"]
        with open(folder / "dockerd.log", "ab") as log:
            process = subprocess.Popen(
                ["dockerd", "--data-root", str(folder / "data"), "--host", host, *own], stdout=log, stderr=log
            )
        try:
            if not _answers(f"{short}/docker.sock", process):
                raise SystemExit(f"dockerd does not answer within {START_SECONDS} s; see {folder / 'dockerd.log'}")
            yield host
            left = subprocess.run(["docker", "-H", host, "ps", "-aq"], capture_output=True, text=True, check=True)
            if names := left.stdout.split():
                subprocess.run(["docker", "-H", host, "rm", "--force", *names], check=True)
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_SECONDS)
            _unmount((folder, Path(short)))


def _answers(path: str, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, contextlib.suppress(OSError):
            connection.settimeout(START_SECONDS)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return connection.recv(64).partition(b" ")[2].startswith(b"200")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            return False
    return False


def _unmount(folders: tuple[Path, ...]) -> None:
    points = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed(points):
        if any(point.is_relative_to(folder) for folder in folders):
            subprocess.run(["umount", "--lazy", str(point)], check=True)


def main(folder: Path) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # standard input tells when to end
    with engine(folder.resolve()) as host:
        print(f"DOCKER_HOST={host}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
