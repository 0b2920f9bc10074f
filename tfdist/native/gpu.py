"""Pins each rank to a GPU, and finds the GPU libraries that the engine loads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from tfdist import config
from tfdist.config import Config
from tfdist.errors import ConfigError
from tfdist.native import package_file
from tfdist.system.rank import job_place

# The packages of each library and its file there: first that of TensorFlow's CUDA 12, then that of CUDA 13.
_Packages = tuple[tuple[str, str], ...]
NCCL: _Packages = (("nvidia-nccl-cu12", "libnccl.so.2"), ("nvidia-nccl-cu13", "libnccl.so.2"))
NVRTC: _Packages = (("nvidia-cuda-nvrtc-cu12", "libnvrtc.so.12"), ("nvidia-cuda-nvrtc", "libnvrtc.so.13"))
NVTX: _Packages = (("nvidia-nvtx-cu12", "libnvtx3interop.so.1"), ("nvidia-nvtx", "libnvtx3interop.so.1"))
_DRIVER = "libcuda.so.1"


def has_driver() -> bool:
    """Whether the NVIDIA driver is installed, so there may be GPUs; does not initialise it."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def take_early(changes: list[str]) -> None:
    """Pins the GPU of a process that a launcher started, before the script creates its first tensor.

    Fails silently: `init` tries again, and reports the error.

    Args:
        changes: A phrase is appended if a GPU was pinned.
    """
    with contextlib.suppress(ConfigError, ImportError):
        place = job_place.of_host(os.environ)  # child processes of a rank use its GPU too
        if place is None or not job_place.is_rank(os.environ):
            return
        if "torch" in sys.modules and "tensorflow" not in sys.modules:
            return  # a script of PyTorch chooses its GPU itself; if it imports TensorFlow too, `init` pins that
        if config.read().pin_gpus and has_driver():
            import tensorflow as tf

            if chosen := pin(tf.config, *place):
                changes.append(f"TensorFlow sees only {chosen}")


def nccl_libraries(settings: Config) -> list[str]:
    """Where to look for NCCL, best first. If a path is set, only that path."""
    return [settings.nccl_library] if settings.nccl_library else _installed(NCCL)


def nvrtc_libraries(settings: Config) -> list[str]:
    """Where to look for NVRTC, the compiler of kernels, as `nccl_libraries`."""
    return [settings.nvrtc_library] if settings.nvrtc_library else _installed(NVRTC)


def nvtx_libraries() -> list[str]:
    """Where to look for NVTX, which shows collectives in NVIDIA's profilers, as `nccl_libraries`."""
    return _installed(NVTX)


def unseen_by_profiler(environment: Mapping[str, str] | None = None) -> str:
    """Why an attached profiler will not show tfdist's collectives; empty if it will, or none is attached."""
    if "NVTX_INJECTION64_PATH" not in (os.environ if environment is None else environment):
        return ""
    for library in nvtx_libraries():
        with contextlib.suppress(OSError):
            ctypes.CDLL(library)
            return ""
    return (
        "a profiler is attached, but its trace will not show tfdist's collectives: NVTX was not found. Install it: pip "
        "install -U nvidia-nvtx-cu12"
    )


def _installed(packages: _Packages) -> list[str]:
    """The files in installed packages, then their names themselves, for the loader to find."""
    found = [path for package, name in packages for path in package_file.find(package, name)]
    return list(dict.fromkeys([*found, *(name for _, name in packages)]))


def pin(devices: Any, local_rank: int, local_size: int, environment: Mapping[str, str] | None = None) -> str | None:
    """Leaves only its rank's GPU visible to TensorFlow in this process, and lets its memory grow as needed.

    If this process sees only one GPU, because of a cluster manager or the script, that one is kept; if it sees none,
    nothing happens.

    Args:
        devices: The module `tf.config`.
        local_rank: This process's local rank.
        local_size: Number of processes of the job on this host.
        environment: Mapping to read CUDA_VISIBLE_DEVICES from; default `os.environ`.

    Returns:
        The name of the GPU, such as "/physical_device:GPU:1"; None if there is none.

    Raises:
        ConfigError: If there are fewer GPUs than processes, or TensorFlow already uses its devices.

    Example:

    ```python
    gpu.pin(tf.config, local_rank=1, local_size=4)
    ```
    """
    present = devices.list_physical_devices("GPU")
    visible = [gpu for gpu in devices.get_visible_devices("GPU") if gpu in present]
    if not visible:
        return None
    shown = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES", "")
    restricted = len(visible) == 1 and (len(present) > 1 or bool(re.fullmatch(r"[^,\s]+", shown.strip())))
    if not restricted and local_size > len(visible):
        raise ConfigError(
            f"{local_size} ranks run on this host, but it has {len(visible)} visible "
            f"{'GPU' if len(visible) == 1 else 'GPUs'}, and each rank needs one. Start at most {len(visible)} ranks on "
            "this host (-np, or -H host:slots). To let ranks share a GPU or stay on the CPU, set TFDIST_PIN_GPUS=0 "
            "and choose the devices in the script."
        )
    chosen = visible[0] if restricted else visible[local_rank]
    try:
        if visible != [chosen]:
            devices.set_visible_devices([chosen], "GPU")
    except RuntimeError as error:
        raise ConfigError(
            f"rank {local_rank} of this host must use only {chosen.name}, but TensorFlow already uses {len(visible)} "
            f"GPUs: {error}. Import tfdist (with TFDIST_EARLY=0: call tfdist.init()) before creating the first tensor, "
            "tf.data.Dataset or Keras model."
        ) from error
    with contextlib.suppress(RuntimeError, ValueError):  # in use, or split by the script: already decided
        devices.experimental.set_memory_growth(chosen, True)
    return str(chosen.name)
