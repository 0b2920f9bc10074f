"""Driver, GPUs, NCCL and the compiler of kernels: findings from the engine's report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.command.doctor import topology
from tfdist.command.doctor.finding import BROKEN, NOTE, Finding
from tfdist.command.doctor.host import Host

GROUP = "GPU"
_ON_CPU = "collectives run on the CPU"
_OLDEST_CUDA = 12000
_GIB = 1 << 30
_TO_USE_GPUS = (
    "to use GPUs, install NVIDIA's driver on the host; in a container: NVIDIA's container toolkit on the host, "
    "and docker run --gpus all"
)
# Under their keys in the engine's report.
_LIBRARIES = {
    "nccl": ("NCCL", "pip install -U nvidia-nccl-cu12, or set TFDIST_NCCL_LIBRARY to the path of one"),
    "compiler": ("NVRTC", "pip install -U nvidia-cuda-nvrtc-cu12, or set TFDIST_NVRTC_LIBRARY to the path of one"),
}


def findings(report: Mapping[str, Any], tensorflow: Mapping[str, Any], host: Host, shown: str | None) -> list[Finding]:
    """What there is and what does not work.

    Args:
        report: Of `tfdist/csrc/nccl/gpu_report.h`.
        tensorflow: "cuda", whether TensorFlow is built with it, and "gpus", how many it sees.
        host: This machine.
        shown: CUDA_VISIBLE_DEVICES, None where it is not set.
    """
    gpus = report.get("gpus", [])
    # Without CUDA in TensorFlow no tensor is on a GPU, and nobody needs a driver, NCCL and NVRTC.
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
    """How several GPUs are connected; `matrix` is None where nvidia-smi could not be asked."""
    if gpus < 2:
        return []
    found = topology.links(matrix or "")
    if not found:
        remedy = "see it with: nvidia-smi topo -m"
        return [Finding(GROUP, "connection", "not known: nvidia-smi did not tell", NOTE, remedy)]
    return [Finding(GROUP, "connection", topology.describe(found))]


def cache(folder: str, writable: bool) -> Finding:
    """Where compiled kernels are kept."""
    name = "kernel cache"
    if not folder:
        return Finding(GROUP, name, "none: kernels are compiled at each start")
    if writable:
        return Finding(GROUP, name, folder)
    remedy = "name another folder with TFDIST_KERNEL_CACHE, or none"
    return Finding(GROUP, name, f"{folder} cannot be written: kernels are compiled at each start", NOTE, remedy)


def _absent(report: Mapping[str, Any], host: Host, shown: str | None, cuda: bool) -> Finding:
    if shown is not None and shown.strip() in ("", "-1") and (host.gpu_files or host.pci_gpus):
        return Finding(GROUP, "GPU", f"hidden by CUDA_VISIBLE_DEVICES={shown!r}: {_ON_CPU}")
    error = report.get("driver", {}).get("error", "the driver counts no GPU.")
    if host.gpu_files:
        remedy = "run nvidia-smi; after an update of the driver, restart the host"
        return Finding(GROUP, "driver", f"{error} There are: {', '.join(host.gpu_files)}", BROKEN, remedy)
    if host.pci_gpus:
        text = f"{host.pci_gpus} on the bus, but no driver for {'it' if host.pci_gpus == 1 else 'them'}: {_ON_CPU}"
        return Finding(GROUP, "GPU", text, NOTE, _TO_USE_GPUS)
    if cuda and "error" in report.get("driver", {}):
        return Finding(GROUP, "GPU", f"no GPU, and no driver that starts: {_ON_CPU}", NOTE, _TO_USE_GPUS)
    return Finding(GROUP, "GPU", f"no GPU: {_ON_CPU}")


def _driver(report: Mapping[str, Any], host: Host) -> Finding:
    number = int(report["driver"].get("version", 0))
    text = f"{host.driver or 'version not known'}, up to CUDA {number // 1000}.{number % 1000 // 10}"
    if number < _OLDEST_CUDA:
        return Finding(GROUP, "driver", text, BROKEN, "install one for CUDA 12 or newer (525 or newer) on the host")
    return Finding(GROUP, "driver", text)


def _gpu(number: int, gpu: Mapping[str, Any]) -> Finding:
    name = f"GPU {number}"
    if "error" in gpu:
        return Finding(GROUP, name, gpu["error"], BROKEN, "run nvidia-smi; reset the GPU or restart the host")
    return Finding(GROUP, name, f"{gpu['name']}, {gpu['architecture']}, {gpu['memory_bytes'] / _GIB:.0f} GiB")


def _tensorflow(tensorflow: Mapping[str, Any], gpus: int) -> Finding:
    name = "TensorFlow"
    if not tensorflow.get("cuda"):
        remedy = "pip uninstall tensorflow-cpu, then pip install 'tfdist[cuda]'"
        return Finding(GROUP, name, f"is built without CUDA and uses no GPU: {_ON_CPU}", NOTE, remedy)
    seen = int(tensorflow.get("gpus", 0))
    if seen < gpus:
        remedy = (
            "its CUDA packages are missing, or of other versions: pip install 'tensorflow[and-cuda]==VERSION' with the "
            "version that is installed; importing it with TF_CPP_MIN_LOG_LEVEL=0 says which library it lacks"
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
    remedy = "pip install -U nvidia-cuda-nvrtc-cu12: a newer one knows newer GPUs"
    return Finding(GROUP, name, kernels["error"], fault, remedy)
