"""Runs tests/gpu/run: its compile part everywhere, the others where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slice("gpu-kernels")

RUN = Path(__file__).resolve().parent / "run"
# The build on one busy core, and a part at its own limit.
LIMIT_SECONDS = 900
NOTHING_FAILED_BUT_NOT_ALL_RAN = 3


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build for all tests of this file."""
    return tmp_path_factory.mktemp("gpu_test")


def run_part(*words: str, build: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {"TFDIST_GPU_BUILD_DIR": str(build), "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", str(RUN), *words],
        env=os.environ | own | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_every_kernel_compiles_for_every_architecture(build: Path) -> None:
    done = run_part("compile", build=build)
    assert done.returncode == 0, done.stdout[-8000:]
    for architecture in ("sm_70", "sm_80", "sm_90", "sm_100"):
        assert f"{architecture}: kernels of " in done.stdout
    assert "| compile   | passed " in done.stdout


@pytest.fixture(scope="module")
def ranges(build: Path) -> dict[str, Path]:
    """A program that tells NVTX of ranges, a profiler that prints them, and NVTX."""
    folder = RUN.parent / "profiler"
    csrc = RUN.parents[2] / "tfdist" / "csrc"
    files = {Path(str(file)).name: Path(str(file.locate())) for file in metadata.files("nvidia-nvtx-cu12") or ()}
    found = {"nvtx": files["libnvtx3interop.so.1"], "program": build / "ranges", "listener": build / "listener.so"}
    compiler = [os.environ.get("CXX", "g++"), "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    headers = files["nvToolsExt.h"].parents[1]
    listener = [*compiler, "-shared", "-fPIC", "-isystem", headers, folder / "listener.cc", "-ldl"]
    subprocess.run([*listener, "-o", found["listener"]], check=True, timeout=LIMIT_SECONDS)
    sources = [folder / "ranges.cc", csrc / "cuda" / "loaded_nvtx.cc", csrc / "cuda" / "shared_library.cc"]
    subprocess.run(
        [*compiler, f"-I{csrc}", *sources, "-ldl", "-o", found["program"]], check=True, timeout=LIMIT_SECONDS
    )
    return found


def seen_of(ranges: dict[str, Path], **variables: str) -> list[str]:
    command = [ranges["program"], ranges["nvtx"]]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
    )
    return done.stdout.splitlines()


def test_profiler_ranges_have_the_layout_of_nvidias_headers(ranges: dict[str, Path]) -> None:
    assert seen_of(ranges, NVTX_INJECTION64_PATH=str(ranges["listener"])) == [
        "domain tfdist",
        "start 1 allreduce 'a'",
        "push bucket 0",
        "push inner",
        "pop",
        "pop",
        "start 2 allreduce 'b'",
        "end 1",
        "end 2",
    ]


def test_without_a_profiler_nobody_is_told(ranges: dict[str, Path]) -> None:
    assert seen_of(ranges) == ["nobody listens"]


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["kernels", "bandwidth", "ranks", "adasum", "abort", "large"])
def test_part(part: str, build: Path) -> None:
    done = run_part(part, build=build)
    if done.returncode == NOTHING_FAILED_BUT_NOT_ALL_RAN:
        pytest.skip(missing(done.stdout))
    assert done.returncode == 0, done.stdout[-8000:]


def test_without_a_gpu_the_rest_is_told_apart_from_a_failure(build: Path) -> None:
    done = run_part("compile", "kernels", build=build, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == NOTHING_FAILED_BUT_NOT_ALL_RAN, done.stdout[-8000:]
    assert "| compile   | passed " in done.stdout
    assert "| kernels   | not run |" in done.stdout
    assert "\nno GPU: " in done.stdout


def test_help_names_every_part_and_a_typing_error_is_refused(build: Path) -> None:
    done = run_part("--help", build=build)
    assert done.returncode == 0
    for part in ("compile", "kernels", "bandwidth", "ranks", "adasum", "abort", "large"):
        assert f"\n  {part} " in done.stdout
    done = run_part("kernel", build=build)
    assert done.returncode == 2
    assert "received part 'kernel'" in done.stdout


def test_a_missing_nvrtc_fails_with_a_remedy(build: Path) -> None:
    done = run_part("compile", build=build, TFDIST_NVRTC_LIBRARY="no/libnvrtc.so.12")
    assert done.returncode == 1
    assert "NVRTC was not found. Install tensorflow[and-cuda] or nvidia-cuda-nvrtc-cu12" in done.stdout
    assert "| compile   | FAILED " in done.stdout


def missing(output: str) -> str:
    """What run says is not there: the GPU, or what the part itself could not find."""
    for line in output.splitlines():
        for start in ("no GPU: ", "not run: "):
            if line.startswith(start):
                return line
    return output[-1000:]
