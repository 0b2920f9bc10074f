"""Starts real jobs with small scripts, and asserts after every test that no process of its jobs is left."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from machine import PROGRAM, Machines, made_in
from s3 import s3, s3_server  # noqa: F401

MARK = "LAUNCH_TEST_MARK"
STARTERS = ("mpi", "direct")
# Of tests/startup: no process finds an MPI.
WITHOUT_MPI = "PYTEST_TFDIST_WITHOUT_MPI"
PROGRAM_OF_LAUNCHER = ("-m", "tfdist.launch")
DEADLINE_S = 120.0  # of a job: one that starts twice and must find a silent host takes half a minute on two idle cores
AGENT = """\
#!/bin/sh
# In the place of ssh, for mpirun and for whoever asks whether a host is there.
# Called as: agent OPTIONS HOST COMMAND...; a host is a UTS name, and remote shells start without our variables.
while [ "${1#-}" != "$1" ]; do case $1 in -o|-p|-i) shift ;; esac; shift; done
host=$1; shift
echo "$host" >>"$AGENT_LOG"
case $host in
  lost)
    [ "$*" != true ] || { echo "ssh: connect to host lost port 22: No route to host" >&2; exit 255; }
    exec sleep 1000 ;;
  refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
esac
# A daemon of MPI that is killed leaves a folder in TMPDIR, named by its number: another one with that cannot start.
export TMPDIR="${AGENT_LOG%/*}"
exec unshare --uts env -u TFDIST_RUN_KEY -u KERAS_MARK sh -c "hostname $host; $*"
"""


@dataclass
class Finished:
    """A launcher that ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float


# Of every script. Where a limit on waiting counts in init, too, `meet` comes first: on a busy machine one rank may
# import for longer than another waits.
HEAD = """\
import os, signal, sys, time
rank = int(os.environ['RANK'])
def meet(ranks):
    open(f'here{rank}', 'w').close()
    while not all(os.path.exists(f'here{other}') for other in range(ranks)): time.sleep(0.01)
"""


@dataclass
class Launch:
    """Starts launchers whose processes all carry one mark in their environment."""

    folder: Path
    starter: str = "mpi"
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    # What was read of the errors of launchers that run, by process id.
    heard: dict[int, bytes] = field(default_factory=dict)

    def script(self, text: str, name: str = "rank.py") -> str:
        (self.folder / name).write_text(HEAD + text)
        return name

    def start(
        self,
        *words: str,
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM_OF_LAUNCHER,
        inside: Sequence[str] = (),
        stdout: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """`inside` are words that run a command in other surroundings, as `ip netns exec`."""
        without_mpi = self.starter == "direct" and program == PROGRAM_OF_LAUNCHER
        if without_mpi:
            words = ("--no-mpi", *words)
        started = subprocess.Popen(
            [*inside, sys.executable, *program, *words],
            cwd=self.folder,
            env={**self.environment(), **({WITHOUT_MPI: "1"} if without_mpi else {}), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(started)
        return started

    def environment(self) -> dict[str, str]:
        """Whatever is started with it is found by `processes`."""
        return {**os.environ, MARK: self.mark}

    def run(self, *words: str, variables: Mapping[str, str] | None = None) -> Finished:
        return self.end(self.start(*words, variables=variables))

    def end(self, launcher: subprocess.Popen[str]) -> Finished:
        begin = time.monotonic()
        out, err = launcher.communicate(timeout=DEADLINE_S)
        err = self.heard.pop(launcher.pid, b"").decode() + err
        return Finished(launcher.returncode, out, err, time.monotonic() - begin)

    def said(self, launcher: subprocess.Popen[str]) -> str:
        """What it has written to stderr until now, which `end` returns, too."""
        assert launcher.stderr is not None
        said = self.heard.get(launcher.pid, b"")
        while select.select([launcher.stderr], [], [], 0)[0] and (more := os.read(launcher.stderr.fileno(), 1 << 16)):
            said += more
        self.heard[launcher.pid] = said
        return said.decode()

    def processes(self) -> dict[int, str]:
        """The command lines, by id, of the living processes with our mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Jobs start with MPI and without it, but for tests that are about one of them, or give other options."""
    if "starter" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("starter")
        metafunc.parametrize("starter", mark.args if mark else STARTERS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` starts each test in one of the two ways, the slice `launch` in the other; its own tests in one."""
    if not os.environ.get("TFDIST_TEST_SAMPLE"):
        return
    left_out = []
    for item in items:
        starter = getattr(item, "callspec", None) and item.callspec.params.get("starter")  # type: ignore[attr-defined]
        if starter is None or item.get_closest_marker("starter"):
            continue
        number = zlib.crc32(item.function.__name__.encode())  # type: ignore[attr-defined]
        if starter != STARTERS[number % len(STARTERS)]:
            if item.get_closest_marker("slice"):
                left_out.append(item)
            else:
                item.add_marker(pytest.mark.slice("launch"))
    config.hook.pytest_deselected(items=left_out)
    those = set(left_out)
    items[:] = [item for item in items if item not in those]


@pytest.fixture
def starter(request: pytest.FixtureRequest) -> str:
    """Who starts the ranks: mpirun, or tfdistrun itself."""
    return str(request.param)


@pytest.fixture
def launch(tmp_path: Path, wait_until: Callable[..., None], starter: str) -> Iterator[Launch]:
    made = Launch(tmp_path, starter)
    yield made
    for launcher in made.started:
        if launcher.poll() is None:  # a failed test has left it
            print(f"{made.said(launcher)}\nstill there:", *made.processes().values(), sep="\n")
            launcher.kill()
        launcher.wait()
    wait_until(lambda: not made.processes(), seconds=10, what=f"the end of {made.processes()}")


@dataclass(frozen=True)
class Agent:
    """What plays several hosts on this machine: an ssh agent that runs the command under another host name."""

    mpi_args: str
    variables: Mapping[str, str]

    def start(self, launch: Launch, *words: str) -> subprocess.Popen[str]:
        (launch.folder / "launch.py").write_text(PROGRAM)
        daemons = ("--mpi-args", self.mpi_args) if launch.starter == "mpi" else ()
        ours = ("--network-interfaces", "lo", *daemons)
        return launch.start(*ours, *words, variables=self.variables, program=["launch.py"])


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    words = ["unshare", "--uts", "hostname", "probe"]
    if shutil.which("unshare") is None or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("needs the right to make UTS namespaces (root)")
    program = tmp_path / "agent.sh"
    program.write_text(AGENT)
    program.chmod(0o755)
    # Where the agent itself is to be found, and that names need not resolve, is said to mpirun alone.
    extra = f"--prtemca plm_ssh_agent {program} --prtemca prte_keep_fqdn_hostnames 1"
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *sys.path]))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").symlink_to(program)
    found = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return Agent(extra, found | {"AGENT_LOG": str(tmp_path / "agent.log"), "KERAS_MARK": "kept", "PYTHONPATH": path})


@pytest.fixture
def machines(tmp_path: Path, launch: Launch) -> Iterator[Machines]:
    """The launcher's machine and two hosts."""
    with made_in(tmp_path, launch.environment()) as made:
        yield made
