"""Runs tests/gpu/run: its compile part everywhere, the others where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        for kernels in ("pack", "Adasum"):
            assert f"{architecture}: {kernels} kernels" in done.stdout
    assert "| compile   | passed " in done.stdout


def test_adasum_kernels_compute_on_the_processor_what_the_engine_does(build: Path) -> None:
    """Their text run as C++, since only a GPU runs what they compile to."""
    run_part("compile", build=build)
    source = subprocess.run([build / "gpu_test", "", "", "source"], capture_output=True, check=True).stdout
    (build / "kernels.inc").write_bytes(source)
    folder = RUN.parent
    csrc = folder.parents[1] / "tfdist" / "csrc"
    includes = [f"-I{place}" for place in (build, csrc, folder.parent / "cpp")]
    sources = [folder / "emulation" / "emulation.cc", csrc / "core" / "adasum.cc"]
    program = build / "emulation"
    compiler = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-g", "-fsanitize=address,undefined"]
    subprocess.run([*compiler, *includes, *sources, "-pthread", "-o", program], check=True, timeout=LIMIT_SECONDS)
    done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stdout
    assert "2 tests, 0 failed expectations" in done.stdout


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
    assert "no NVRTC was found. Install tensorflow[and-cuda] or nvidia-cuda-nvrtc-cu12" in done.stdout
    assert "| compile   | FAILED " in done.stdout


def missing(output: str) -> str:
    """What run says is not there: the GPU, or what the part itself could not find."""
    for line in output.splitlines():
        for start in ("no GPU: ", "not run: "):
            if line.startswith(start):
                return line
    return output[-1000:]
