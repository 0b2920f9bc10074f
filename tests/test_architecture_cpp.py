"""Who may look into which room of the C++ sources, by `#include`, and what no source may do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The rooms that each room may include besides itself. A line has only rooms of lines before it: there are no circles.
_CORE = "core/value core/place core/watch core/wire core/agree core/algorithm core/engine"
CPP_ROOMS = {
    "core/value": "",
    "core/place": "core/value",
    "core/watch": "core/value core/place",
    "core/wire": "core/value core/place core/watch",
    "core/agree": "core/value core/place core/watch core/wire",
    "core/algorithm": "core/value core/place core/watch core/wire core/agree",
    "core/engine": "core/value core/place core/watch core/wire core/agree core/algorithm",
    "data": _CORE,
    "shm": _CORE,
    "socket": f"{_CORE} shm",  # its ranks share memory too
    "mpi": f"{_CORE} shm",  # it introduces the ranks that share memory
    "cuda": _CORE,
    "nccl": f"{_CORE} cuda",
    "tf": _CORE,
    "tf/data": "core/watch data",
    "tf/ops": "",
    "tf/kernels": f"{_CORE} data tf",
    "tf/xla": f"{_CORE} tf",
}
FOREIGN_OWNERS = {
    "mpi.h": "mpi",
    "nccl.h": "nccl",
    "cuda.h": "cuda",
    "nvrtc.h": "cuda",
    "tensorflow/": "tf",
    "xla/": "tf",
    "tsl/": "tf",
    "absl/": "tf",
    "Eigen/": "tf",
    "unsupported/": "tf",
}
# The files of core that may use more than the standard library, so that everything else stays portable.
INTRINSICS_FILE = "core/value/float_span.cc"
OTHER_HEADERS = {
    INTRINSICS_FILE: ("<cpuid.h>", "<immintrin.h>", "<arm_neon.h>"),
    "core/engine/c_api.cc": ("<unistd.h>",),  # it closes descriptors that no transport has taken
    "core/watch/steady_condition.h": ("<pthread.h>", "<time.h>"),
    "core/watch/trace_file.cc": ("<sys/stat.h>", "<unistd.h>"),
}
STANDARD_HEADERS = frozenset(
    """
    algorithm any array atomic bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt complex condition_variable csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib
    cstring ctime cwchar deque exception execution filesystem forward_list fstream functional future
    initializer_list iomanip ios iosfwd iostream istream iterator limits list locale map memory
    memory_resource mutex new numeric optional ostream queue random ratio regex scoped_allocator set
    shared_mutex sstream stack stdexcept streambuf string string_view system_error thread tuple type_traits
    typeindex typeinfo unordered_map unordered_set utility valarray variant vector stddef.h stdint.h
    """.split()
)


def includes(text: str) -> Iterator[tuple[int, str]]:
    """Every `#include` as (line, target), the target with its quotes or brackets."""
    for match in re.finditer(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")', text, re.MULTILINE):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def cpp_sources() -> dict[str, str]:
    folder = ROOT / "tfdist" / "csrc"
    paths = (path for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cc", ".cu"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def check_includes(sources: dict[str, str]) -> list[str]:
    problems = []
    for path, text in sources.items():
        room = path.rpartition("/")[0]
        if room not in CPP_ROOMS:
            problems.append(f"{path}: stands in no room; the rooms are {', '.join(CPP_ROOMS)}")
            continue
        for line, target in includes(text):
            reason = _forbidden_include(path, room, target)
            if reason:
                problems.append(f"{path}:{line} includes {target}: {reason}")
    return problems


def _forbidden_include(path: str, room: str, target: str) -> str:
    name = target[1:-1]
    other = name.rpartition("/")[0]
    if other in CPP_ROOMS:
        return "" if other in (room, *CPP_ROOMS[room].split()) else f"{room}/ may not look into {other}/"
    for header, owner in FOREIGN_OWNERS.items():
        if name == header or (header.endswith("/") and name.startswith(header)):
            return "" if room.partition("/")[0] == owner else f"only {owner}/ may"
    if target.startswith('"'):
        return 'write own headers with their room, as in "core/value/status.h"'
    allowed = name in STANDARD_HEADERS or target in OTHER_HEADERS.get(path, ())
    if room.startswith("core/") and not allowed:
        others = [file for file, headers in OTHER_HEADERS.items() if target in headers]
        return f"only {others[0]} may" if others else "core/ uses the C++ standard library only"
    return ""


def check_cpp_environment(sources: dict[str, str]) -> list[str]:
    """Settings reach the engine as values; tfdist/config.py has read them."""
    return [
        f"{path}:{number} reads the environment; take the value as an argument, from tfdist.config"
        for path, text in sources.items()
        for number, line in enumerate(text.splitlines(), 1)
        if "getenv(" in line.partition("//")[0]
    ]


def check_cpp_waits(sources: dict[str, str]) -> list[str]:
    """A timed wait of the standard library follows the wall clock where the library is old."""
    timed = re.compile(r"\b(wait_for|wait_until|try_lock_for|try_lock_until|condition_variable_any)\b")
    return [
        f"{path}:{number} waits by a clock that may be set; use SteadyCondition in core/watch/steady_condition.h"
        for path, text in sources.items()
        for number, line in enumerate(text.splitlines(), 1)
        if timed.search(line.partition("//")[0])
    ]


CPP_CHECKS = (check_includes, check_cpp_environment, check_cpp_waits)


@pytest.mark.parametrize("check", CPP_CHECKS)
def test_cpp_rooms(check: Callable[[dict[str, str]], list[str]]) -> None:
    sources = cpp_sources()
    assert {"core/engine", "mpi", "tf"} <= {path.rpartition("/")[0] for path in sources}
    assert check(sources) == []


def test_every_row_is_a_room_and_sees_only_rooms_before_it() -> None:
    assert set(CPP_ROOMS) == {path.rpartition("/")[0] for path in cpp_sources()}
    before: list[str] = []
    for room, seen in CPP_ROOMS.items():
        assert set(seen.split()) <= set(before), room
        before.append(room)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/engine/engine.cc", "#include <vector>"),
        ("core/engine/engine.cc", '#include "core/value/status.h"'),
        ("core/engine/engine.cc", "// #include <mpi.h>"),
        (INTRINSICS_FILE, "#include <immintrin.h>"),
        ("mpi/communicator.cc", "#include <mpi.h>"),
        ("mpi/communicator.cc", "#include <unistd.h>"),
        ("tf/ops/allreduce_op.cc", '#include "tensorflow/core/framework/op.h"'),
        ("tf/xla/allreduce_call.cc", '#include "xla/ffi/api/ffi.h"'),
    ],
)
def test_include_check_accepts(path: str, line: str) -> None:
    assert check_includes({path: line}) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/engine/engine.cc", "#include <mpi.h>"),
        ("core/engine/engine.cc", '#  include "mpi.h"'),
        ("core/engine/engine.cc", "#include <sched.h>"),
        ("core/engine/engine.cc", "#include <immintrin.h>"),
        ("core/engine/engine.cc", '#include "mpi/mpi_communicator.h"'),
        ("core/engine/engine.cc", '#include "tensorflow/core/framework/tensor.h"'),
        ("core/engine/engine.cc", '#include "status.h"'),
        ("mpi/communicator.cc", '#include "tf/conversion.h"'),
        ("mpi/communicator.cc", '#include "absl/status/status.h"'),
        ("tf/conversion.cc", '#include "mpi/mpi_communicator.h"'),
        ("tf/conversion.cc", "#include <mpi.h>"),
        ("shm/window.cc", '#include "xla/ffi/api/ffi.h"'),
        ("engine.cc", "#include <vector>"),
    ],
)
def test_include_check_finds(path: str, line: str) -> None:
    assert len(check_includes({path: line})) == 1


def test_cpp_environment_check_finds() -> None:
    assert len(check_cpp_environment({"core/engine/engine.cc": 'const char* a = std::getenv("TFDIST_A");'})) == 1
    assert check_cpp_environment({"core/engine/engine.cc": "int a = 1;  // no getenv() here"}) == []


def test_cpp_waits_check_finds() -> None:
    assert len(check_cpp_waits({"data/a.cc": "changed_.wait_for(lock, ns);\nlock.try_lock_for(ns);"})) == 2
    assert check_cpp_waits({"data/a.cc": "changed_.WaitFor(&lock, ns);  // not wait_for\nchanged_.wait(lock);"}) == []
