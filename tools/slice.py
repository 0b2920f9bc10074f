#!/usr/bin/env python3
"""The slices of `make test-all`: tests that need another environment than `make test`, or that repeat what it proves.

`make test` proves each fact once, at one size and in one way to fail where that can be; `ranks`, `elastic`, `launch`,
`data-service` and `docs` have the other sizes, ways and pages.

    slice.py NAME...    runs these; `make test-NAME` runs one alone
    slice.py all        `make test`, then every slice
    slice.py touched    `make test`, then the slices that the last commits touched, and one more in rotation

Each prints its name and its minutes. One that fails does not stop the others; the output ends with the report of what
failed, else with pytest's closing line of what ran first.
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
# The slice in rotation starts only if this much time is left of the budget of .ci/run, an hour.
LATEST_START_MINUTES = 45
CLOSING = re.compile(r"=+ .*\b\d+ (passed|failed|skipped|deselected|errors?)\b.* in [\d.:]+s.* =+")


@dataclass(frozen=True)
class Slice:
    """`inputs` are the paths, from the root, whose change calls for it: a folder ends with a slash."""

    name: str
    inputs: tuple[str, ...]


SLICES = (
    Slice("ranks", ("tfdist/csrc/", "tfdist/ops/", "callbacks/", "tests/ranks/")),
    Slice("elastic", ("tfdist/elastic/", "tfdist/launch/", "callbacks/", "tests/elastic/")),
    Slice("hosts", ("tfdist/launch/", "tests/launch/")),
    Slice("launch", ("tfdist/launch/", "tests/launch/", "tests/chaos/")),
    Slice("data-service", ("data_service/", "tests/data_service/")),
    Slice("docs", ("docs/", "examples/", "README.md", "tests/examples/")),
    Slice("gpu-kernels", ("tfdist/csrc/cuda/", "tfdist/csrc/tf/", "tests/gpu/", "tests/xla/")),
    Slice("engine", ("tfdist/csrc/", "tests/cpp/")),
    Slice("slurm", ("tfdist/launch/", "tests/launch/slurm_cluster.py", "tests/launch/test_slurm.py")),
    Slice("images", ("docker/", "compose/", "tests/compose/", "tfdist/launch/", "tfdist/image/", "setup.py")),
    Slice("cuda-image", ("docker/Dockerfile", "tests/compose/test_cuda_image.py", "pyproject.toml")),
    Slice("tf-matrix", ("tfdist/csrc/tf/", "tfdist/ops/", "setup.py", "pyproject.toml", "tools/build_")),
    Slice("tfio", ("data_service/source/", "tests/tfio/")),
    Slice("gpu-build", ("tfdist/csrc/cuda/", "tfdist/csrc/nccl/", "tfdist/csrc/tf/")),
)
NAMES = tuple(each.name for each in SLICES)


def touched(paths: list[str]) -> list[str]:
    """The names of the slices that a change of these paths calls for."""
    return [each.name for each in SLICES if any(path.startswith(each.inputs) for path in paths)]


def in_rotation(commits: int, chosen: list[str]) -> str | None:
    """Another slice than the chosen ones, another one after each commit; None if all are chosen."""
    others = [name for name in NAMES if name not in chosen]
    return others[commits % len(others)] if others else None


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
    begin = time.monotonic()
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
    minutes = (time.monotonic() - begin) / 60
    print(f"== make {target}: {'passed' if passed else 'failed'} after {minutes:.1f} minutes", flush=True)
    (LOGS / f"{target}.log").write_text("".join(output))
    return passed, "".join(output)


def main(words: list[str]) -> int:
    begin = time.monotonic()
    unknown = [word for word in words if word not in (*NAMES, "all", "touched")]
    if not words or unknown or (len(words) > 1 and {"all", "touched"} & set(words)):
        print(
            f"slice.py: received {' '.join(words) or 'nothing'}; expected all, touched, or names of {', '.join(NAMES)}"
        )
        return 2
    chosen = list(NAMES) if words == ["all"] else _touched_lately() if words == ["touched"] else words
    targets = [f"test-{name}" for name in chosen]
    ends = {target: run(target) for target in (["test", *targets] if words[0] in ("all", "touched") else targets)}
    if words == ["touched"] and (extra := in_rotation(_commits(), chosen)):
        if time.monotonic() - begin < LATEST_START_MINUTES * 60:
            ends[f"test-{extra}"] = run(f"test-{extra}")
        else:
            print(f"== make test-{extra}, the slice in rotation, is left out: the others took too long")
    failed = [target for target, (passed, _) in ends.items() if not passed]
    for target, (passed, output) in sorted(ends.items(), key=lambda end: (not end[1][0], end[0] == "test")):
        print(f"== make {target}: {'passed' if passed else 'failed'}\n{report(output)}")
    return 1 if failed else 0


def _touched_lately() -> list[str]:
    """A history that does not reach back that far has touched everything it has."""
    newest = int(_git("log", "-1", "--format=%ct"))
    since = f"--since={newest - LAST_HOURS * 3600}"
    return touched(_git("log", since, "--first-parent", "-m", "--name-only", "--format=").split("\n"))


def _commits() -> int:
    return int(_git("rev-list", "--count", "HEAD"))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
