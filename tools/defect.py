#!/usr/bin/env python3
"""The defects of `tests/defects.toml`: breaks the product in each of these ways and sees that a test fails.

    defect.py list                        names each with its room, its file and its test
    defect.py check [NAME...]             breaks a copy of the product, all ways or those named, and runs their tests
    defect.py check --baseline [NAME...]  the same with nothing broken in the copy, and expects the tests to pass

You need it when tests are removed, merged or sampled: what is caught before must be caught after. A defect that is
not needs its test back, or another one, which then stands in the table.

Tests see the installed package, so a broken Python file is that of a copy of it which comes first on PYTHONPATH. C++
is compiled from a copy in build/defects, where the builds stay: for tests/cpp by their run.sh, else the library for
such a copy of the package. For anything else, such as the scripts of the images, the whole repository is copied. The
exit status is 1 unless all are caught: by a test that fails, not by one that is not there or never ends.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import build_environment

# pytest brings the second one.
tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "defects.toml"
SCRATCH = ROOT / "build" / "defects"
PROGRAMS = Path(sys.executable).parent
LIMIT_SECONDS, END_SECONDS, TIMED_OUT = 900, 60, 124
CPP, CPP_TESTS = "tfdist/csrc/", "tests/cpp"


@dataclass(frozen=True)
class Defect:
    """`old`, which occurs once in `file`, becomes `new`, and `test` fails.

    `test` is a file or a node of pytest, of which `select` is the expression for `-k`; or tests/cpp, of which `select`
    is the name of a test. `slice` is that of tools/slice.py where `make test` does not run it.
    """

    name: str
    room: str
    file: str
    old: str
    new: str
    test: str
    select: str = ""
    slice: str = ""

    @property
    def shown_test(self) -> str:
        return f"{self.test} {self.select}".strip()

    @property
    def installed(self) -> str:
        """The file in the installed package; empty if it is not in it."""
        inside = self.file.startswith(("callbacks/", "data_service/"))
        return f"tfdist/{self.file}" if inside else self.file if self.file.startswith("tfdist/") else ""

    def broken(self, content: bytes) -> bytes:
        found = content.count(self.old.encode())
        if found != 1:
            raise SystemExit(f"{self.name}: `old` must occur once in {self.file}, and occurs {found} times")
        return content.replace(self.old.encode(), self.new.encode())


def read(*names: str) -> list[Defect]:
    """The defects of the table, or those that are named."""
    defects = [Defect(**entry) for entry in tomllib.loads(TABLE.read_text())["defect"]]
    if unknown := sorted(set(names) - {each.name for each in defects}):
        raise SystemExit(f"defect.py: there is no defect {', '.join(unknown)}; `defect.py list` names them")
    return [each for each in defects if not names or each.name in names]


def judge(defect: Defect, baseline: bool) -> tuple[bool, str]:
    """Whether the test does what is expected of it; what it did, with the end of its output if not."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:  # links need the disk of the package
        status, output = _run_test(replace(defect, new=defect.old) if baseline else defect, Path(folder))
    failed = status == 1 and (defect.test != CPP_TESTS or "\nFAILED " in output)
    if (failed and not baseline) or (status == 0 and baseline):
        return True, "passes" if baseline else "caught"
    how = "fails" if failed else "passes" if status == 0 else f"does not run to its end: exit status {status}"
    lines = [f"{'NOT PASSED' if baseline else 'NOT CAUGHT'}: {defect.shown_test} {how}", *output.splitlines()[-25:]]
    return False, "\n".join(lines)


def _run_test(defect: Defect, scratch: Path) -> tuple[int, str]:
    path = f"{PROGRAMS}:{os.environ['PATH']}"
    where, environment = ROOT, {"OMP_NUM_THREADS": "1", **os.environ, "TFDIST_TEST_SAMPLE": "1", "PATH": path}
    if defect.test == CPP_TESTS:
        source = _cpp_source(defect)
        environment["TFDIST_CPP_BUILD_DIR"] = str(SCRATCH / "cpp")
        return _run(["bash", str(source / CPP_TESTS / "run.sh"), "none", defect.select], source, environment)
    if defect.installed:
        _break_package(defect, scratch)
        environment["PYTHONPATH"] = ":".join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    else:
        left_out = shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__")
        where = shutil.copytree(ROOT, scratch / "repository", symlinks=True, ignore=left_out)
        (where / defect.file).write_bytes(defect.broken((ROOT / defect.file).read_bytes()))
    # Not `python -m pytest`, with which the source folder would hide the package.
    words = [f"{PROGRAMS}/pytest", "-q", "-x", "-p", "no:cacheprovider", defect.test]
    words += ["-k", defect.select] * bool(defect.select) + [f"--slice={defect.slice}"] * bool(defect.slice)
    return _run(words, where, environment)


def _run(words: list[str], where: Path, environment: dict[str, str]) -> tuple[int, str]:
    """The exit status, TIMED_OUT if it does not end, and what was printed."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        started = subprocess.Popen(
            words, cwd=where, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = started.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            status = TIMED_OUT
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGINT)  # pytest ends what its tests have started
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(END_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
        output.seek(0)
        return status, output.read()


def _break_package(defect: Defect, folder: Path) -> None:
    """Makes `folder` hold the installed package, as links, with the defect in it."""
    shutil.copytree(Path(sysconfig.get_path("platlib")) / "tfdist", folder / "tfdist", copy_function=os.link)
    file = folder / defect.installed
    if not defect.file.startswith(CPP):
        _write(file, defect.broken(file.read_bytes()))
        return
    options = build_environment.find().cmake_options() | {"CMAKE_BUILD_TYPE": "Release"}
    cmake, build = build_environment.cmake_command(), str(SCRATCH / "library")
    configure = ["-S", str(_cpp_source(defect)), "-B", build, *(f"-D{name}={options[name]}" for name in options)]
    for words in (configure, ["--build", build, "--parallel", str(os.cpu_count())]):
        status, output = _run([*cmake, *words], ROOT, dict(os.environ))
        if status != 0:
            raise SystemExit(f"{defect.name}: the library cannot be built\n{output}")
    for library in Path(build).glob("libtfdist*.so"):
        _write(folder / "tfdist" / library.name, library.read_bytes())


def _cpp_source(defect: Defect) -> Path:
    """A copy of all C++ with the defect in it. A file that is there as it shall be is not written, for the builds."""
    source = SCRATCH / "source"
    files = [ROOT / "CMakeLists.txt", *(ROOT / CPP).rglob("*"), *(ROOT / CPP_TESTS).rglob("*")]
    wanted = {source / file.relative_to(ROOT): file.read_bytes() for file in files if file.is_file()}
    wanted[source / defect.file] = defect.broken(wanted[source / defect.file])
    for file in source.rglob("*"):
        if file.is_file() and file not in wanted:
            file.unlink()
    for file, content in wanted.items():
        if not file.is_file() or file.read_bytes() != content:
            _write(file, content)
    return source


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # it may be a link
    file.write_bytes(content)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="defect.py")
    parser.add_argument("command", choices=("list", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--baseline", action="store_true", help="break nothing, and expect the tests to pass")
    given = parser.parse_intermixed_args(words)
    defects, bad, begin = read(*given.names), [], time.monotonic()
    for each in defects:
        if given.command == "list":
            print(f"{each.name}  {each.room}  {each.file}  {each.shown_test}")
            continue
        start, (good, told) = time.monotonic(), judge(each, given.baseline)
        bad += [] if good else [each.name]
        print(f"{each.name} {time.monotonic() - start:.0f} s {told}", flush=True)
    if given.command == "check":
        print(f"{len(defects) - len(bad)} of {len(defects)} in {(time.monotonic() - begin) / 60:.1f} minutes", *bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
