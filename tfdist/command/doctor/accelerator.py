"""Findings about the driver, GPUs, NCCL and the kernel compiler, from the engine's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.command.doctor import topology
from tfdist.command.doctor.finding import BROKEN, NOTE, Finding
from tfdist.command.doctor.host import Host
from tfdist.native import requirement

GROUP = "GPU"
_ON_CPU = "collectives run on the CPU"
_OLDEST_CUDA = 12000
_GIB = 1 << 30
_TO_USE_GPUS = (
    "to use GPUs, install the NVIDIA driver on the host; for containers, also the NVIDIA container toolkit, "
    "and use docker run --gpus all"
)
# By their keys in the engine's report.
_LIBRARIES = {
    "nccl": ("NCCL", "pip install -U nvidia-nccl-cu12, or set TFDIST_NCCL_LIBRARY to its path"),
    "compiler": ("NVRTC", "pip install -U nvidia-cuda-nvrtc-cu12, or set TFDIST_NVRTC_LIBRARY to its path"),
}


def findings(report: Mapping[str, Any], tensorflow: Mapping[str, Any], host: Host, shown: str | None) -> list[Finding]:
    """Findings about the GPUs and what they need.

    Args:
        report: The report of `tfdist/csrc/nccl/gpu_report.h`.
        tensorflow: "cuda": whether TensorFlow is built with CUDA; "gpus": how many GPUs it sees.
        host: Facts about this machine.
        shown: CUDA_VISIBLE_DEVICES; None if it is not set.
    """
    gpus = report.get("gpus", [])
    # If TensorFlow has no CUDA, no tensor is on a GPU, so the driver, NCCL and NVRTC are not needed.
    cuda = bool(tensorflow.get("cuda"))
    if not gpus:
        found = [_absent(report, host, shown, cuda)]
        return found + _libraries(report, NOTE) if cuda else found
    found = [_driver(report, host)]
    found += [_gpu(number, gpu) for number, gpu in enumerate(gpus)]
    if shown:
        found.append(Finding(GROUP, "CUDA_VISIBLE_DEVICES", shown))
    found.append(_tensorflow(tensorflow, len(gpus)))
    fault = BROKEN if cuda else NOTE
    found += _libraries(report, fault)
    found += [_kernels(kernels, fault) for kernels in report.get("kernels", [])]
    return found


def connection(gpus: int, matrix: str | None) -> list[Finding]:
    """How the GPUs are connected; `matrix` is None if nvidia-smi did not provide it."""
    if gpus < 2:
        return []
    found = topology.links(matrix or "")
    if not found:
        remedy = "run: nvidia-smi topo -m"
        return [Finding(GROUP, "connection", "unknown: nvidia-smi did not report it", NOTE, remedy)]
    return [Finding(GROUP, "connection", topology.describe(found))]


def cache(folder: str, writable: bool) -> Finding:
    """Where compiled kernels are cached."""
    name = "kernel cache"
    if not folder:
        return Finding(GROUP, name, "none: kernels are compiled at each start")
    if writable:
        return Finding(GROUP, name, folder)
    remedy = "set TFDIST_KERNEL_CACHE to another folder, or to none"
    return Finding(GROUP, name, f"{folder} cannot be written: kernels are compiled at each start", NOTE, remedy)


def _absent(report: Mapping[str, Any], host: Host, shown: str | None, cuda: bool) -> Finding:
    if shown is not None and shown.strip() in ("", "-1") and (host.gpu_files or host.pci_gpus):
        return Finding(GROUP, "GPU", f"hidden by CUDA_VISIBLE_DEVICES={shown!r}: {_ON_CPU}")
    error = report.get("driver", {}).get("error", "the driver reports no GPU.")
    if host.gpu_files:
        remedy = "run nvidia-smi; after a driver update, restart the host"
        return Finding(GROUP, "driver", f"{error} Device files: {', '.join(host.gpu_files)}", BROKEN, remedy)
    if host.pci_gpus:
        text = f"{host.pci_gpus} on the bus, but no driver for {'it' if host.pci_gpus == 1 else 'them'}: {_ON_CPU}"
        return Finding(GROUP, "GPU", text, NOTE, _TO_USE_GPUS)
    if cuda and "error" in report.get("driver", {}):
        return Finding(GROUP, "GPU", f"no GPU, and no working driver: {_ON_CPU}", NOTE, _TO_USE_GPUS)
    return Finding(GROUP, "GPU", f"no GPU: {_ON_CPU}")


def _driver(report: Mapping[str, Any], host: Host) -> Finding:
    number = int(report["driver"].get("version", 0))
    text = f"{host.driver or 'version unknown'}, up to CUDA {number // 1000}.{number % 1000 // 10}"
    if number < _OLDEST_CUDA:
        return Finding(
            GROUP, "driver", text, BROKEN, "install a driver for CUDA 12 or newer (525 or newer) on the host"
        )
    return Finding(GROUP, "driver", text)


def _gpu(number: int, gpu: Mapping[str, Any]) -> Finding:
    name = f"GPU {number}"
    if "error" in gpu:
        return Finding(GROUP, name, gpu["error"], BROKEN, "run nvidia-smi; reset the GPU or restart the host")
    return Finding(GROUP, name, f"{gpu['name']}, {gpu['architecture']}, {gpu['memory_bytes'] / _GIB:.0f} GiB")


def _tensorflow(tensorflow: Mapping[str, Any], gpus: int) -> Finding:
    name = "TensorFlow"
    if not tensorflow.get("cuda"):
        wanted = requirement.of("tensorflow[and-cuda]")
        remedy = f"pip uninstall tensorflow-cpu, then pip install {wanted} nvidia-nvtx-cu12"
        return Finding(GROUP, name, f"built without CUDA, uses no GPU: {_ON_CPU}", NOTE, remedy)
    seen = int(tensorflow.get("gpus", 0))
    if seen < gpus:
        remedy = (
            "its CUDA packages are missing or have the wrong version: pip install 'tensorflow[and-cuda]==VERSION' with "
            "the installed version; importing it with TF_CPP_MIN_LOG_LEVEL=0 shows which library is missing"
        )
        return Finding(GROUP, name, f"sees {seen} of {gpus} GPUs", BROKEN, remedy)
    return Finding(GROUP, name, f"sees {seen} GPU{'s' if seen > 1 else ''}")


def _libraries(report: Mapping[str, Any], fault: str) -> list[Finding]:
    return [_library(name, report[key], remedy, fault) for key, (name, remedy) in _LIBRARIES.items() if key in report]


def _library(name: str, part: Mapping[str, Any], remedy: str, fault: str) -> Finding:
    if "error" in part:
        return Finding(GROUP, name, part["error"], fault, remedy)
    return Finding(GROUP, name, str(part["text"]).removeprefix(f"{name} "))


def _kernels(kernels: Mapping[str, Any], fault: str) -> Finding:
    name = f"kernels for {kernels['architecture']}"
    if "error" not in kernels:
        return Finding(GROUP, name, "compile")
    remedy = "pip install -U nvidia-cuda-nvrtc-cu12: a newer one supports newer GPUs"
    return Finding(GROUP, name, kernels["error"], fault, remedy)
