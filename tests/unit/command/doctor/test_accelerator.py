"""What is said of GPUs, NCCL and the compiler, from the engine's report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.doctor import accelerator
from tfdist.command.doctor.finding import BROKEN, NOTE, OK, Finding
from tfdist.command.doctor.host import Host

CUDA = {"version": "2.21.0", "cuda": True, "gpus": 2}
WITHOUT_CUDA = {"version": "2.21.0", "cuda": False, "gpus": 0}
NO_DRIVER = {
    "driver": {"error": "the NVIDIA driver was not found: libcuda.so.1"},
    "gpus": [],
    "nccl": {"error": "NCCL was not found."},
    "compiler": {"error": "NVRTC was not found."},
    "kernels": [],
}


def named(findings: list[Finding], name: str) -> Finding:
    return next(one for one in findings if one.name == name)


def test_all_is_well(report: dict[str, Any], server: Host) -> None:
    findings = accelerator.findings(report, CUDA, server, None)
    assert {one.state for one in findings} == {OK}
    assert [(one.name, one.text) for one in findings] == [
        ("driver", "570.86.15, up to CUDA 12.8"),
        ("GPU 0", "NVIDIA H200, sm_90, 141 GiB"),
        ("GPU 1", "NVIDIA H200, sm_90, 141 GiB"),
        ("TensorFlow", "sees 2 GPUs"),
        ("NCCL", "2.28.0 (/site/libnccl.so.2)"),
        ("NVRTC", "12.9 (/site/libnvrtc.so.12)"),
        ("kernels for sm_90", "compile"),
    ]


@pytest.mark.parametrize("report", [{}, NO_DRIVER])
def test_no_gpu_is_no_fault(report: dict[str, Any], bare: Host) -> None:
    assert accelerator.findings(report, WITHOUT_CUDA, bare, None) == [
        Finding("GPU", "GPU", "no GPU: collectives run on the CPU")
    ]


@pytest.mark.parametrize("report", [{}, {"driver": {"version": 12080}, "gpus": []}])
def test_a_driver_that_counts_none_is_not_called_missing(report: dict[str, Any], bare: Host) -> None:
    assert accelerator.findings(report, CUDA, bare, None) == [
        Finding("GPU", "GPU", "no GPU: collectives run on the CPU")
    ]


def test_an_image_for_gpus_is_looked_at_where_there_is_none(report: dict[str, Any], bare: Host) -> None:
    looked_at = report | {"driver": NO_DRIVER["driver"], "gpus": [], "kernels": []}
    gpu, *libraries = accelerator.findings(looked_at, CUDA, bare, None)
    assert (gpu.state, gpu.text) == (NOTE, "no GPU, and no working driver: collectives run on the CPU")
    assert "docker run --gpus all" in gpu.remedy
    assert [(one.name, one.text, one.state) for one in libraries] == [
        ("NCCL", "2.28.0 (/site/libnccl.so.2)", OK),
        ("NVRTC", "12.9 (/site/libnvrtc.so.12)", OK),
    ]


def test_gpu_image_without_a_gpu_is_no_fault(bare: Host) -> None:
    libraries = accelerator.findings(NO_DRIVER, CUDA, bare, None)[1:]
    assert [(one.text, one.state) for one in libraries] == [
        ("NCCL was not found.", NOTE),
        ("NVRTC was not found.", NOTE),
    ]
    assert all("pip install -U nvidia-" in one.remedy for one in libraries)


def test_a_gpu_without_a_driver_is_worth_a_note(bare: Host) -> None:
    (one,) = accelerator.findings(NO_DRIVER, WITHOUT_CUDA, replace(bare, pci_gpus=1), None)
    assert one.state == NOTE and "1 on the bus, but no driver for it: collectives run on the CPU" in one.text
    assert "docker run --gpus all" in one.remedy


def test_a_driver_that_does_not_start_is_broken(server: Host) -> None:
    report = NO_DRIVER | {"driver": {"error": "the NVIDIA driver failed to initialize: unknown error."}}
    one, *_ = accelerator.findings(report, CUDA, server, None)
    assert one.state == BROKEN and "unknown error. Device files: nvidia0, nvidia1" in one.text


@pytest.mark.parametrize("shown", ["", "-1"])
def test_hidden_gpus_are_meant_to_be(server: Host, shown: str) -> None:
    one, *_ = accelerator.findings(NO_DRIVER, CUDA, server, shown)
    assert one.state == OK and f"hidden by CUDA_VISIBLE_DEVICES={shown!r}" in one.text


def test_those_that_are_shown_are_named(report: dict[str, Any], server: Host) -> None:
    assert named(accelerator.findings(report, CUDA, server, "2,3"), "CUDA_VISIBLE_DEVICES").text == "2,3"


def test_each_fault_has_a_remedy(report: dict[str, Any], server: Host) -> None:
    report["driver"]["version"] = 11080
    report["gpus"][1] = {"error": "the GPU fell off the bus"}
    report["nccl"] = {"error": "NCCL 2.16.2 is too old"}
    report["compiler"] = {"error": "NVRTC was not found."}
    report["kernels"] = [{"architecture": "sm_120", "error": "invalid value for --gpu-architecture"}]
    findings = accelerator.findings(report, CUDA | {"gpus": 0}, server, None)
    broken = {one.name: one for one in findings if one.state == BROKEN}
    assert list(broken) == ["driver", "GPU 1", "TensorFlow", "NCCL", "NVRTC", "kernels for sm_120"]
    assert all(one.remedy for one in broken.values())
    assert broken["TensorFlow"].text == "sees 0 of 2 GPUs"
    assert "TFDIST_NCCL_LIBRARY" in broken["NCCL"].remedy and "TFDIST_NVRTC_LIBRARY" in broken["NVRTC"].remedy


def test_without_cuda_in_tensorflow_nobody_needs_nccl(report: dict[str, Any], server: Host) -> None:
    report["nccl"] = report["compiler"] = {"error": "none"}
    findings = accelerator.findings(report, WITHOUT_CUDA, server, None)
    assert {one.name for one in findings if one.state == NOTE} == {"TensorFlow", "NCCL", "NVRTC"}
    assert BROKEN not in {one.state for one in findings}
    assert "pip install 'tensorflow[and-cuda]" in named(findings, "TensorFlow").remedy


def test_connection() -> None:
    matrix = Path(__file__).with_name("sample").joinpath("topology_nvlink.txt").read_text()
    assert accelerator.connection(1, matrix) == []
    (one,) = accelerator.connection(4, matrix)
    assert (one.state, one.text) == (OK, "NVLink between all GPUs (NV18)")
    for unknown in (None, "", "No devices were found"):
        (one,) = accelerator.connection(2, unknown)
        assert one.state == NOTE and "nvidia-smi topo -m" in one.remedy


def test_cache() -> None:
    assert accelerator.cache("/a", True) == Finding("GPU", "kernel cache", "/a")
    assert accelerator.cache("", False).state == OK
    one = accelerator.cache("/a", False)
    assert one.state == NOTE and "TFDIST_KERNEL_CACHE" in one.remedy
