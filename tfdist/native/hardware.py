"""The names of the processor and the GPUs of this process."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from tfdist.native import adapter


def processor(description: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the processor; its architecture if the model is unknown."""
    try:
        lines = description.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def gpus() -> list[Any]:
    """The GPUs that TensorFlow uses in this process."""
    return list(adapter.import_tensorflow().config.get_visible_devices("GPU"))


def kind() -> str:
    """The devices TensorFlow computes on: the processor, and the GPUs it uses."""
    details = adapter.import_tensorflow().config.experimental.get_device_details
    return ", ".join([processor(), *sorted({details(gpu).get("device_name", gpu.name) for gpu in gpus()})])
