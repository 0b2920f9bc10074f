"""GPUs as far as Python deals with them: which one a rank takes, and where the libraries are that the engine loads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist import config
from tfdist.config import Config
from tfdist.errors import ConfigError

# Packages of the CUDA that TensorFlow uses, and the file of each that is wanted.
NCCL = ("nvidia-nccl-cu12", "libnccl.so.2")
NVRTC = ("nvidia-cuda-nvrtc-cu12", "libnvrtc.so.12")
NVTX = ("nvidia-nvtx-cu12", "libnvtx3interop.so.1")
_DRIVER = "libcuda.so.1"


def has_driver() -> bool:
    """Whether NVIDIA's driver is here, and there may be GPUs; starts nothing of it."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def take_early(changes: list[str]) -> None:
    """Takes the GPU of a process that a launcher started, before the script makes its first tensor.

    Says nothing where it cannot: `init` tries again and tells.

    Args:
        changes: Gets a phrase if there was one to take.
    """
    with contextlib.suppress(ConfigError, ImportError):
        place = config.launcher_local_place(os.environ)  # also what a rank starts takes its GPU
        if place is None or not config.started_by_launcher(os.environ):
            return
        if config.read().pin_gpus and has_driver():
            import tensorflow as tf

            if chosen := pin(tf.config, *place):
                changes.append(f"TensorFlow sees {chosen} alone")


def nccl_libraries(settings: Config) -> list[str]:
    """Where to look for NCCL, best first: what is set is looked for nowhere else."""
    return [settings.nccl_library] if settings.nccl_library else _installed(*NCCL)


def nvrtc_libraries(settings: Config) -> list[str]:
    """Where to look for NVRTC, the compiler of kernels, as `nccl_libraries`."""
    return [settings.nvrtc_library] if settings.nvrtc_library else _installed(*NVRTC)


def nvtx_libraries() -> list[str]:
    """Where to look for NVTX, which tells NVIDIA's profilers of collectives, as `nccl_libraries`."""
    return _installed(*NVTX)


def unseen_by_profiler(environment: Mapping[str, str] | None = None) -> str:
    """Why the profiler that is attached will see nothing of tfdist; empty where it will, or none is attached."""
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


def _installed(package: str, name: str) -> list[str]:
    """The file of an installed package, then whatever the loader finds under that name."""
    from importlib import metadata  # not with `import tfdist`, which comes here: it takes 30 ms

    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        files = []
    return [*(str(Path(str(file.locate())).resolve()) for file in files if file.name == name), name]


def pin(devices: Any, local_rank: int, local_size: int, environment: Mapping[str, str] | None = None) -> str | None:
    """Leaves one GPU visible to TensorFlow in this process, that of its rank, and lets its memory grow as needed.

    Where this process was shown one GPU only, by a cluster manager or by the script, that one is kept; where it was
    shown none, nothing happens.

    Args:
        devices: The module `tf.config`.
        local_rank: This process's number on its host.
        local_size: How many processes of the job are there.
        environment: Mapping to read CUDA_VISIBLE_DEVICES from; default `os.environ`.

    Returns:
        The name of the GPU, such as "/physical_device:GPU:1"; None where there is none.

    Raises:
        ConfigError: If there are fewer GPUs than processes, or TensorFlow uses its devices already.

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
            f"{'GPU' if len(visible) == 1 else 'GPUs'}, and each rank takes one. Start at most {len(visible)} ranks on "
            "this host (-np, or -H host:slots); or set TFDIST_PIN_GPUS=0 and choose the devices in the script, where "
            "ranks are to share a GPU or to stay on the CPU."
        )
    chosen = visible[0] if restricted else visible[local_rank]
    try:
        if visible != [chosen]:
            devices.set_visible_devices([chosen], "GPU")
    except RuntimeError as error:
        raise ConfigError(
            f"rank {local_rank} of this host is to use {chosen.name} alone, but TensorFlow has taken {len(visible)} "
            f"GPUs already: {error}. Import tfdist (with TFDIST_EARLY=0: call tfdist.init()) before the first tensor, "
            "tf.data.Dataset or Keras model is made."
        ) from error
    with contextlib.suppress(RuntimeError, ValueError):  # in use, or divided by the script: decided before
        devices.experimental.set_memory_growth(chosen, True)
    return str(chosen.name)
