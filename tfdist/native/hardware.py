"""What the processor and the GPU of this process are called."""

from __future__ import annotations

import platform
from pathlib import Path

from tfdist.native import library


def processor(description: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the processor; its architecture where the system does not tell."""
    try:
        lines = description.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def kind() -> str:
    """What TensorFlow computes on here: the processor, and the GPUs that it sees."""
    config = library.import_tensorflow().config
    gpus = [
        config.experimental.get_device_details(device).get("device_name", device.name)
        for device in config.get_visible_devices("GPU")
    ]
    return ", ".join([processor(), *sorted(set(gpus))])
