"""What holds for every test: the order (fast first), a working folder outside the source tree, and no process left.

A session that a test starts inside this one (the ranks of tests/ranks) inherits its tag and leaves all three to it.
With `-n 2` of pytest-xdist each of the two worker processes is such a session.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

# Every process started by this session has it in its environment, whoever its parent is by then.
TAG = "PYTEST_TFDIST_SESSION"
INNER = TAG in os.environ
# In the PYTHONPATH of all of them.
STARTUP = str(Path(__file__).parent / "startup")
LEFT = "processes left"
LAUNCHERS = frozenset({"mpirun", "mpiexec", "prterun", "prted", "orted", "tfdistrun"})
# Some tests run a part of their combinations: those with the mark `sampled`, and tests/ranks by a rule of its own.
SAMPLED = bool(os.environ.get("TFDIST_TEST_SAMPLE"))
# A process that was told to end may need this long to go.
GRACE_SECONDS = 3.0
POLL_SECONDS = 0.02
# Folders of tests, fast ones first. At the end come those of many short files, so that the processes end at the same
# time; one that is not named here comes after them.
ORDER = (
    *("unit", "fuzz", "test_architecture.py", "test_architecture_cpp.py", "kubernetes", "compose", "cpp", "gpu", "xla"),
    *("ranks", "launch", "elastic", "examples", "data_service"),
)
# Of a test of tests/ranks: its world size, and how the ranks are connected.
WORLD = re.compile(r"[\[-]((?:mpi|sockets)-np\d+)[-\]]")


# Under nohup all that is started here would ignore it, as it should, and could not be told to end by it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "run the tests marked slice(NAME), which no other run has; all runs every test whatever its mark"
    parser.addoption("--slice", metavar="NAME", help=told)


def _poll() -> None:
    """The one pause of the tests, between two looks at a condition."""
    time.sleep(POLL_SECONDS)  # noqa: TID251 -- the one pause, between two looks at a condition


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Waits for a condition with a deadline: `wait_until(lambda: path.exists(), seconds=10, what="the file")`."""

    def wait(condition: Callable[[], object], seconds: float = 30.0, what: str = "the condition") -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"waited {seconds} seconds for {what}")
            _poll()

    return wait


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """Called with a part of a command line: the ids of the processes that have it."""

    def find(part: str) -> list[int]:
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                if part in words.decode(errors="replace"):
                    found.append(int(name))
        return found

    return find


@pytest.fixture
def descriptors_close(wait_until: Callable[..., None]) -> Callable[[], AbstractContextManager[None]]:
    """A context that waits at its end until no descriptor is open that was opened in it.

    Not until there are as many as before: threads of gRPC, of data services in other tests, open and close theirs.
    """

    def opened() -> set[tuple[str, str]]:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the list itself
                found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        return found

    @contextlib.contextmanager
    def kept() -> Iterator[None]:
        before = opened()
        yield
        since = opened() - before
        wait_until(lambda: not since & opened(), seconds=10, what="the end of the descriptors opened since")

    return kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    ranks = {name: index for index, name in enumerate(ORDER)}

    def place(item: pytest.Item) -> int:
        parts = item.path.relative_to(tests).parts if item.path.is_relative_to(tests) else ("",)
        return ranks.get(parts[0], len(ORDER))

    items.sort(key=place)
    wanted = config.getoption("slice")
    if not INNER:
        _leave(items, config, [item for item in items if wanted not in ("all", _slice(item))])
    if SAMPLED:
        seen: dict[object, int] = {}
        left_out = []
        for item in items:
            mark = item.get_closest_marker("sampled")
            if mark is None:
                continue
            count = seen.setdefault(item.function, 0)  # type: ignore[attr-defined]
            seen[item.function] = count + 1  # type: ignore[attr-defined]
            if count % mark.args[0]:
                left_out.append(item)
        _leave(items, config, left_out)


def _slice(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("slice")
    return mark.args[0] if mark else None


def _leave(items: list[pytest.Item], config: pytest.Config, left_out: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=left_out)
    those = set(left_out)
    items[:] = [item for item in items if item not in those]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """What one process of xdist runs as a whole."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False  # the order is ours
    return Scheduling(config, log)


def scope(nodeid: str) -> str:
    """Tests of a world size are one job, those of compose share an engine, those of a file its fixtures."""
    file, _, test = nodeid.partition("::")
    room = file.rpartition("tests/")[2].partition("/")[0]
    if room == "compose":
        return room
    if room == "cpp":
        return nodeid  # a build, minutes long
    world = WORLD.search(test) if room == "ranks" else None
    return f"ranks {world[1]}" if world else file


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Children inherit a folder in which `import tfdist` can only mean the installed package, and STARTUP."""
    if INNER:
        return (yield)
    factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    start = os.getcwd()
    os.environ[TAG] = uuid.uuid4().hex
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, os.environ.get("PYTHONPATH"))))
    os.chdir(factory.mktemp("cwd"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is in the background of a shell, and children would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return (yield)
    finally:
        os.chdir(start)


@pytest.fixture
def all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts find what `startup` hides from others."""
    monkeypatch.setenv("PYTEST_TFDIST_ALL_PACKAGES", "1")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A seed that a test has set is not that of the next one."""
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and not INNER:
        tensorflow.random.set_seed(None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the session, as one more failed test, if a process of it is still there."""
    tag = os.environ.get(TAG, "")
    if INNER or not tag:
        return
    end = time.monotonic() + GRACE_SECONDS
    left = left_processes(tag)
    while left and time.monotonic() < end:
        _poll()
        left = left_processes(tag)
    if left:
        for pid in left:
            _kill(pid)
        listed = "\n".join(f"  {pid}: {command}" for pid, command in left.items())
        text = f"{len(left)} processes of these tests still ran {GRACE_SECONDS} s after them (killed now):\n{listed}"
        if hasattr(session.config, "workeroutput"):  # of xdist: what its workers tell at their end
            session.config.workeroutput[LEFT] = text
        else:
            _fail(session.config, text)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    del os.environ[TAG]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if text := getattr(node, "workeroutput", {}).get(LEFT):
        _fail(node.config, text)


def _fail(config: pytest.Config, text: str) -> None:
    report = pytest.TestReport(
        nodeid="tests/conftest.py::no_process_is_left",
        location=("tests/conftest.py", 0, "no_process_is_left"),
        keywords={},
        outcome="failed",
        longrepr=text,
        when="call",
    )
    config.hook.pytest_runtest_logreport(report=report)


def left_processes(tag: str) -> dict[int, str]:
    """Command lines, by id, of processes that carry the tag, and of launchers and new ones that descend from us."""
    found = {}
    parents = {}
    names = {}
    starting = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        try:
            names[pid], state, parents[pid] = _stat(entry)
            environment = (entry / "environ").read_bytes().split(b"\0") if state != "Z" else []
        except OSError:  # it ended while we looked, or is another user's
            continue
        if f"{TAG}={tag}".encode() in environment:
            found[pid] = _command(entry)
        elif state == "Z":
            del names[pid]
        elif environment == [b""]:  # it is within exec, and no longer has that of its parent
            starting.add(pid)
    for pid, name in names.items():
        if (name in LAUNCHERS or pid in starting) and _descends(pid, parents):
            found[pid] = _command(Path(f"/proc/{pid}"))
    return {pid: command for pid, command in found.items() if "multiprocessing.resource_tracker" not in command}


def _stat(entry: Path) -> tuple[str, str, int]:
    """Name, state and parent. The name stands in parentheses and may hold any character."""
    before, _, after = (entry / "stat").read_text(errors="replace").rpartition(")")
    state, parent = after.split()[:2]
    return before.partition("(")[2], state, int(parent)


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
    return pid == os.getpid()


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
