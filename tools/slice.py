#!/usr/bin/env python3
"""The slices of `make test-all`: tests that need another environment than `make test`, or that repeat what it proves.

`make test` proves each fact once, at one size and in one way to fail where that can be; `ranks`, `elastic`, `launch`,
`data-service`, `docs` and `examples` have the other sizes, ways, pages and scripts.

    slice.py NAME...    runs these; `make test-NAME` runs one alone
    slice.py all        `make test`, then every slice; what has passed on the same committed sources is not repeated, so
                        that a run that was stopped continues
    slice.py touched    `make test`, then the slices that the last commits touched, and one more in rotation, as far as
                        an hour goes at the pace of `make test`: what is left out is said, and is another one after the
                        next commit

Each prints its name and its minutes. One that fails does not stop the others; the output ends with the report of what
failed, else with pytest's closing line of `make test`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "slices"
# What counts as the last commits: those of the hours before the newest one.
LAST_HOURS = 12
# .ci/run has an hour, of which it needs some for setup and lint.
BUDGET_MINUTES = 50
# `make test` on the machine on which the minutes below were taken. Where it takes longer, so does every slice.
TEST_MINUTES = 36
CLOSING = re.compile(r"=+ .*\b\d+ (passed|failed|skipped|deselected|errors?)\b.* in [\d.:]+s.* =+")


@dataclass(frozen=True)
class Slice:
    """`minutes` are what it may take on two cores: one that would end too late is not begun by `touched`.

    `inputs` match the beginning of the paths, from the root, whose change calls for it.
    """

    name: str
    minutes: int
    inputs: str


# Modules of tfdist that are in no room, and the rooms that training goes through.
_TRAINING = r"tfdist/([^/]+\.py|(csrc|native|world|ops|training|input|autotune|observe|keras|tensorflow)/)|callbacks/"
_LAUNCH = r"tfdist/(system|protocol|launch|testing)/|tests/launch/"
# What the pages are, and the tests that run them.
_PAGES = r"docs/|README\.md|mkdocs|tools/website/|tests/(examples/test_[gt]|storage/test_page|launch/test_start_any)"
SLICES = (
    Slice("ranks", 30, rf"{_TRAINING}|tfdist/elastic/|tests/ranks/"),
    Slice("elastic", 9, rf"{_TRAINING}|{_LAUNCH}|tfdist/elastic/|tests/elastic/"),
    Slice("hosts", 5, _LAUNCH),
    Slice(
        "launch",
        10,
        rf"{_LAUNCH}|tfdist/(autotune|command|observe|storage)/|tests/(chaos|storage)/|docs/(autot|debug-a)",
    ),
    Slice("data-service", 3, r"data_service/|tests/data_service/|benchmarks/data_service"),
    Slice("docs", 9, rf"{_PAGES}|callbacks/rank_zero|tfdist/command/"),
    Slice("examples", 12, r"examples/|tests/examples/|tfdist/(alias|keras|tensorflow|system/program|launch/command)"),
    # tests/gpu/run compiles the engine and the teams of tests/cpp.
    Slice("gpu-kernels", 4, r"tfdist/csrc/|tests/(gpu|xla)/|tests/cpp/\w+\."),
    Slice("engine", 10, r"tfdist/csrc/|tests/cpp/"),
    Slice("slurm", 3, r"tfdist/launch/|tests/launch/(slurm_cluster|test_slurm\w*)\.py|examples/jobs/elastic"),
    Slice("images", 15, r"docker/|compose/|tests/compose/|tfdist/(launch|command/image)/|setup\.py"),
    Slice("cuda-image", 6, r"docker/Dockerfile|tests/compose/test_cuda_image\.py|pyproject\.toml"),
    Slice("tf-matrix", 8, r"tfdist/(csrc/tf|native|ops|training)/|setup\.py|pyproject\.toml|tools/build_|CMakeLists"),
    Slice("tf-next", 14, r"tfdist/(csrc/tf|native)/|pyproject\.toml|CMakeLists"),
    Slice("wheel", 30, r"tools/(wheels|symbols|build_)|setup\.py|pyproject\.toml|CMakeLists|tests/wheel/"),
    Slice("mpich", 9, r"tfdist/(csrc/mpi|native|launch/start)/|tools/mpi_plugin"),
    Slice("no-mpi", 7, r"tfdist/(csrc/socket|protocol|world|launch)/"),
    Slice("spark", 14, r"tfdist/(spark|launch/(agent|function))/|tests/spark/|examples/spark_|docs/spark"),
    Slice("ray", 9, r"tfdist/(ray|launch/(agent|function))/|tests/ray/|examples/ray_|docs/(ray|hyper)"),
    Slice("torch", 8, r"tfdist/(torch|alias|native|world|csrc/core/engine)/|tests/torch/|examples/pytorch/|docs/torch"),
    Slice("tfio", 6, r"data_service/source/|tests/tfio/"),
    Slice("gpu-build", 6, r"tfdist/csrc/(cuda|nccl|tf)/"),
)
NAMES = tuple(each.name for each in SLICES)


def touched(paths: list[str]) -> list[str]:
    """The names of the slices that a change of these paths calls for."""
    return [each.name for each in SLICES if any(re.match(each.inputs, path) for path in paths)]


def in_order(chosen: list[str], commits: int) -> list[str]:
    """The chosen slices and one more; another one comes first, and another one is added, after each commit."""
    others = [name for name in NAMES if name not in chosen]
    start = commits % max(1, len(chosen))
    return [*chosen[start:], *chosen[:start], *others[commits % max(1, len(others)) :][:1]]


def report(output: str) -> str:
    """Of what a run printed: pytest's summary of failures with its closing line, else the end of the output."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("make")]
    closings = [index for index, line in enumerate(lines) if CLOSING.fullmatch(line.strip())]
    if not closings:
        return "\n".join(lines[-40:])
    summaries = [index for index, line in enumerate(lines) if "short test summary info" in line]
    first = max((index for index in summaries if index < closings[-1]), default=closings[-1])
    return "\n".join(lines[first : closings[-1] + 1])


def run(target: str) -> tuple[bool, str]:
    """Runs `make TARGET` and shows what it prints.

    Returns:
        Whether it passed, and its output.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    begin, sources = time.monotonic(), committed()
    print(f"== make {target}", flush=True)
    command = ["make", "--no-print-directory", target]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as started:
        assert started.stdout is not None
        output = []
        for line in started.stdout:
            print(line, end="", flush=True)
            output.append(line)
    passed = started.returncode == 0
    print(f"== make {target}: {'passed' if passed else 'failed'} after {_minutes_since(begin):.1f} minutes", flush=True)
    (LOGS / f"{target}.log").write_text("".join(output))
    (LOGS / f"{target}.passed").write_text(sources if passed and sources == committed() else "")
    return passed, "".join(output)


def committed() -> str:
    """The sources as git names them; empty if some are not committed, or git does not know them."""
    try:
        return "" if _git("status", "--porcelain") else _git("rev-parse", "HEAD^{tree}")
    except (OSError, subprocess.CalledProcessError):
        return ""


def passed_before(target: str) -> str | None:
    """The output of `make TARGET` if it has passed on these sources."""
    record = LOGS / f"{target}.passed"
    sources = record.read_text() if record.is_file() else ""
    return (LOGS / f"{target}.log").read_text() if sources and sources == committed() else None


def run_once(target: str) -> tuple[bool, str]:
    """As `run`, unless it has passed on these sources."""
    output = passed_before(target)
    if output is None:
        return run(target)
    print(f"== make {target}: has passed on these sources; to repeat it, remove {LOGS.relative_to(ROOT)}", flush=True)
    return True, output


def main(words: list[str]) -> int:
    begin = time.monotonic()
    if not (words in (["all"], ["touched"]) or (words and set(words) <= set(NAMES))):
        known = ", ".join(NAMES)
        print(f"slice.py: received {' '.join(words) or 'nothing'}; expected all, touched, or names of {known}")
        return 2
    start = run_once if words == ["all"] else run
    ends = {"test": start("test")} if words[0] in ("all", "touched") else {}
    pace = max(1.0, _minutes_since(begin) / TEST_MINUTES)
    names = list(NAMES) if words == ["all"] else _for_the_last_commits() if words == ["touched"] else words
    by_name = {each.name: each for each in SLICES}
    for each in map(by_name.__getitem__, names):
        minutes = each.minutes * pace
        if words == ["touched"] and _minutes_since(begin) + minutes > BUDGET_MINUTES:
            print(f"== make test-{each.name} is left out: with its {minutes:.0f} minutes this would take too long")
        else:
            ends[f"test-{each.name}"] = start(f"test-{each.name}")
    return _verdict(ends)


def _minutes_since(begin: float) -> float:
    return (time.monotonic() - begin) / 60


def _verdict(ends: dict[str, tuple[bool, str]]) -> int:
    """Shows how each ended, what failed last, and returns the exit status."""
    for target, (passed, output) in sorted(ends.items(), key=lambda end: (not end[1][0], end[0] == "test")):
        print(f"== make {target}: {'passed' if passed else 'failed'}\n{report(output)}")
    return 0 if all(passed for passed, _ in ends.values()) else 1


def _for_the_last_commits() -> list[str]:
    """A history that does not reach back that far has touched everything it has."""
    newest = int(_git("log", "-1", "--format=%ct"))
    since = f"--since={newest - LAST_HOURS * 3600}"
    paths = _git("log", since, "--first-parent", "-m", "--name-only", "--format=").split("\n")
    return in_order(touched(paths), int(_git("rev-list", "--count", "HEAD")))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
