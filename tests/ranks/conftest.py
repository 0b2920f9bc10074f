"""Runs the tests of this folder on several ranks: one job a world size, all tests of that size in it.

A test here is an ordinary function that every rank runs at the same time. `@pytest.mark.ranks(1, 2, 3, 4)` chooses the
world sizes (default 2 and 3); the fixture `world` is the size. Seen from outside, each test and size is one item: it
passes if it passed on every rank. Of the combinations of parameters `make test` and the slice `ranks` run samples,
others at each size, and `make soak` all.

The outer session starts `tfdistrun -np SIZE pytest NODE...` when the first item of a size comes up. The ranks (the
inner sessions) write what happened to files, which the outer session reads as they grow. A rank that fails leaves its
peers inside a collective; the check of headers then fails them too, and the barrier after each test brings all of them
back in step. After a test that failed on any rank the job ends, and a new one runs the tests that are left, so that no
test sees what a failed one left behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
RESULTS = os.environ.get("TFDIST_TEST_RESULTS")
INNER = RESULTS is not None
DEFAULT_SIZES = (2, 3)
# How the ranks are connected, with the option that chooses it. A job over sockets finds no MPI at all.
TRANSPORTS = {"mpi": "--mpi", "sockets": "--no-mpi"}
WITHOUT_MPI = "PYTEST_TFDIST_WITHOUT_MPI"
World = tuple[int, str]
# The collectives of a test wait this long for a rank that failed or hangs; a first trace on a busy core is slow.
STALL_SECONDS = 120
SECONDS_FOR_START = 180
SECONDS_A_TEST = 120
# These are tests of the CPU; `make test-gpu` lets some of them share a GPU.
DEVICES = {} if os.environ.get("TFDIST_TEST_GPU") else {"CUDA_VISIBLE_DEVICES": ""}
# `make test` runs a few combinations of each test's parameters, and the slice `ranks` of the others one in so many.
SAMPLED = bool(os.environ.get("TFDIST_TEST_SAMPLE"))
ONE_IN = {1: 8, 2: 3, 3: 8, 4: 8}
# `make test` runs a test at the first of these that it has, the slice `ranks` at each. Two ranks are the cheapest that
# differ, three the cheapest that are no power of two.
ORDER_OF_SIZES = ((2, 3, 4, 1), (3, 2, 4, 1), (2, 4, 3, 1), (2, 1, 3, 4))
POLL_SECONDS = 0.05
SECONDS_FOR_END = 60


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    sizes = mark.args if mark else DEFAULT_SIZES
    mark = metafunc.definition.get_closest_marker("transport")
    metafunc.parametrize("transport", mark.args if mark else tuple(TRANSPORTS))
    metafunc.parametrize("world", sizes, ids=[f"np{size}" for size in sizes])


def world_of(item: pytest.Item) -> World:
    params = item.callspec.params  # type: ignore[attr-defined]
    return int(params["world"]), str(params["transport"])


if INNER:

    @pytest.fixture(scope="session", autouse=True)
    def _initialised() -> None:
        import tfdist

        tfdist.init()
        _without_autotuned_iterators()

    @pytest.fixture(autouse=True)
    def _in_step(world: int, transport: str, request: pytest.FixtureRequest) -> Iterator[None]:
        """Each test finds the job as if it were the first: the process remembers, for one, that data was unequal."""
        import keras

        import tfdist
        from tfdist.world.session import session

        assert tfdist.size() == world
        assert (tfdist.mpi_enabled(), tfdist.gloo_enabled()) == (transport == "mpi", transport == "sockets")
        failures = request.session.testsfailed
        keras.utils.set_random_seed(1000 + tfdist.rank())
        flags = {name: value for name, value in vars(session).items() if isinstance(value, bool)}
        yield
        keras.backend.clear_session(free_memory=False)
        vars(session).update(flags)
        _meet(request.node.name)
        if tfdist.allgather_object(request.session.testsfailed > failures).count(True):
            request.session.shouldstop = "a rank failed"

    @pytest.fixture
    def warnings_of_tfdist() -> Iterator[list[str]]:
        """What tfdist warns of on this rank, in a list that grows."""
        lines: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("tfdist")
        logger.addHandler(handler)
        yield lines
        logger.removeHandler(handler)

    @pytest.fixture
    def shared_tmp_path(request: pytest.FixtureRequest) -> Path:
        """A folder of this test, the same on every rank."""
        assert RESULTS is not None
        path = Path(RESULTS) / "tmp" / re.sub(r"\W+", "_", request.node.nodeid)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        rank = os.environ["RANK"]
        entry = {
            "nodeid": report.nodeid,
            "outcome": report.outcome,
            "when": report.when,
            "duration": report.duration,
            "text": str(report.longrepr) if report.longrepr else "",
        }
        with open(Path(str(RESULTS)) / f"rank{rank}.jsonl", "a") as file:
            file.write(json.dumps(entry) + "\n")


def _without_autotuned_iterators() -> None:
    """Lets garbage go at once: TensorFlow waits up to a minute in the destructor of an iterator that tunes itself.

    It does so where several of a dataset are unfinished, as tests leave them, and all ranks wait with the one that
    looks for garbage.
    """
    import tensorflow as tf

    begin = tf.data.Dataset.__iter__

    def begin_fixed(dataset: tf.data.Dataset) -> object:
        options = tf.data.Options()
        options.autotune.enabled = False
        return begin(dataset.with_options(options))

    tf.data.Dataset.__iter__ = begin_fixed


def _meet(test: str) -> None:
    """Waits for all ranks at the end of a test, past the mismatches that a failed rank causes."""
    import tfdist

    for _ in range(50):
        try:
            tfdist.barrier(name=f"end of {test}")
            return
        except tfdist.errors.MismatchError:
            continue
    pytest.exit(f"the ranks could not be brought back in step after {test}", returncode=3)


class Batch:
    """The inner run of all items of one world; results are read from its files while it runs."""

    def __init__(self, items: list[pytest.Item], world: World, folder: Path) -> None:
        size, transport = world
        self._size = size
        self._folder = folder
        self._reports: list[dict[str, list[dict[str, object]]]] = [{} for _ in range(size)]
        self._read_until = [0] * size
        root = items[0].config.rootpath
        nodes = [f"{root / item.nodeid.split('::')[0]}::{item.nodeid.split('::', 1)[1]}" for item in items]
        (folder / "arguments").write_text("\n".join(nodes))
        bin_folder = Path(sys.executable).parent
        option = TRANSPORTS[transport]
        command = [str(bin_folder / "tfdistrun"), option, "-np", str(size), str(bin_folder / "pytest")]
        command += ["-q", "--rootdir", str(root), "-c", str(root / "pyproject.toml"), "-p", "no:cacheprovider"]
        environment = (
            os.environ
            | DEVICES
            | {
                "TFDIST_TEST_RESULTS": str(folder),
                "TFDIST_STALL_CHECK_SHUTDOWN_TIME": str(STALL_SECONDS),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            | ({} if transport == "mpi" else {WITHOUT_MPI: "1", "PATH": "/usr/bin:/bin"})
        )
        self._output = folder / "output"
        self._end = time.monotonic() + SECONDS_FOR_START + SECONDS_A_TEST * len(items)
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, f"@{folder / 'arguments'}"],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def failure(self, nodeid: str) -> str:
        """Waits for one test; returns what went wrong with it, rank by rank, or nothing."""
        while not self._complete(nodeid):
            if self._process.poll() is not None:
                self._read()
                break
            if time.monotonic() > self._end:
                self.stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_SECONDS)
        texts = []
        for rank, reports in enumerate(self._reports):
            entries = reports.get(nodeid, [])
            texts += [f"rank {rank}:\n{e['text']}" for e in entries if e["outcome"] != "passed"]
        if not self._complete(nodeid):
            tail = self._output.read_text(errors="replace")[-6000:]
            texts.append(f"not every rank finished this test; output of the job:\n{tail}")
        return "\n\n".join(texts)

    def duration(self, nodeid: str) -> float:
        return max((sum(float(str(e["duration"])) for e in r.get(nodeid, [])) for r in self._reports), default=0.0)

    def stop(self) -> None:
        """Ends the job, if it still runs, and waits until it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(SECONDS_FOR_END)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its ranks go with it
            self._process.wait(SECONDS_FOR_END)

    def finish(self) -> None:
        """Waits for the job to end by itself after its last test."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STALL_SECONDS)
        self.stop()

    def _complete(self, nodeid: str) -> bool:
        self._read()
        return all({"setup", "call", "teardown"} <= {e["when"] for e in r.get(nodeid, [])} for r in self._reports)

    def _read(self) -> None:
        """Takes in what the ranks have written since the last look; a line may still be incomplete."""
        for rank, reports in enumerate(self._reports):
            path = self._folder / f"rank{rank}.jsonl"
            if not path.is_file():
                continue
            with path.open("rb") as file:
                file.seek(self._read_until[rank])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_until[rank] += len(whole)
            for line in whole.splitlines():
                entry = json.loads(line)
                reports.setdefault(entry["nodeid"], []).append(entry)


if not INNER:
    _batches: dict[World, Batch] = {}

    @pytest.fixture(autouse=True)
    def _has_a_world(world: int, transport: str) -> None:
        """Gives every test the parameters `world` and `transport`, as the ranks' own fixture does."""

    @pytest.fixture
    def warnings_of_tfdist() -> None:
        raise AssertionError("runs on the ranks only")

    @pytest.fixture
    def shared_tmp_path() -> None:
        raise AssertionError("runs on the ranks only")

    def _sample(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
        """What the slice `ranks` has beside `make test`: other combinations of each world; and what neither has.

        One size of a test runs over one transport, the next over the other; of the size that `make test` has, the slice
        has the other too.
        """
        functions: dict[Callable[..., object], dict[World, list[pytest.Item]]] = {}
        for item in items:
            functions.setdefault(item.function, {}).setdefault(world_of(item), []).append(item)  # type: ignore[attr-defined]
        of_slice, left_out = [], []
        for function, worlds in functions.items():
            turns = _turns(function, worlds)
            first = next(iter(turns))
            for (size, transport), combinations in worlds.items():
                step = min(ONE_IN[size], len(combinations))
                some = [item for index, item in enumerate(combinations) if not (index - size) % step]
                has_turn = transport == turns[size]
                some = some if has_turn else some[:1] if size == first else []
                left_out += [item for item in combinations if item not in some]
                of_slice += some[1:] if size == first and has_turn else some
        return of_slice, left_out

    def _turns(function: Callable[..., object], worlds: dict[World, list[pytest.Item]]) -> dict[int, str]:
        """Over which transport a test runs at each size; the first size is that of `make test`."""
        number = zlib.crc32(function.__name__.encode())  # the same whichever files are collected
        transports = sorted({transport for _, transport in worlds})
        order = [size for size in ORDER_OF_SIZES[number % len(ORDER_OF_SIZES)] if (size, transports[0]) in worlds]
        return {size: transports[(number // 4 + place) % len(transports)] for place, size in enumerate(order)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
        """Worlds one after the other, so that progress shows job by job; before a slice is taken."""
        if SAMPLED:
            of_slice, left_out = _sample([item for item in items if HERE in item.path.parents])
            for item in of_slice:
                item.add_marker(pytest.mark.slice("ranks"))
            config.hook.pytest_deselected(items=left_out)
            those = set(left_out)
            items[:] = [item for item in items if item not in those]
        ours = [item for item in items if HERE in item.path.parents]
        places = [index for index, item in enumerate(items) if HERE in item.path.parents]
        for place, item in zip(places, sorted(ours, key=world_of), strict=True):
            items[place] = item

    def _start(first: pytest.Item) -> None:
        """Starts the job of a test and of those after it that have its world."""
        left = first.session.items[first.session.items.index(first) :]
        items = [item for item in left if HERE in item.path.parents and world_of(item) == world_of(first)]
        size, transport = world_of(first)
        folder = first.config._tmp_path_factory.mktemp(f"np{size}_{transport}_")  # type: ignore[attr-defined]
        _batches[world_of(first)] = Batch(items, world_of(first), folder)

    def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if HERE not in item.path.parents:  # the hook is called for every item of the session
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        world = world_of(item)
        if world not in _batches:
            _start(item)
        batch = _batches[world]
        failure = batch.failure(item.nodeid)
        if nextitem is None or HERE not in nextitem.path.parents or world_of(nextitem) != world:
            batch.finish()
        elif failure:
            batch.finish()
            del _batches[world]
        for when in ("setup", "call", "teardown"):
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords=dict.fromkeys(item.keywords, 1),
                outcome="failed" if failure and when == "call" else "passed",
                longrepr=failure if failure and when == "call" else None,
                when=when,  # type: ignore[arg-type]
                duration=batch.duration(item.nodeid) if when == "call" else 0.0,
            )
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish() -> None:
        """After the last test, which has waited for its job, or an interrupt: no job outlives the session."""
        for batch in _batches.values():
            batch.stop()
