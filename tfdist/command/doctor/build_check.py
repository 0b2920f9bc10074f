"""`tfdistrun --check-build`: what this installation supports, in horovodrun's format. `tfdist doctor` shows more."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tfdist import config
from tfdist.command.doctor import child

# A box: whether it is there, its name, and a remark.
Box = tuple[bool, str, str]


def main() -> int:
    """Prints the text, and returns 0 if training can be started, else 1. A child process loads TensorFlow."""
    found = child.probe()
    if isinstance(found, str):
        print(f"tfdist: {found}")
        return 1
    print(render(found))
    return int(any("error" in found[name] for name in ("tensorflow", "keras", "mpi", "library")))


def render(found: Mapping[str, Any]) -> str:
    """The boxes as text.

    Args:
        found: What `tfdist.command.doctor.probe` prints.
    """
    library, gpus = found["library"], found["gpus"]
    nccl, driver = (gpus if "error" in gpus else gpus[name] for name in ("nccl", "driver"))
    xla = library.get("built", {}).get("xla", "")
    newest = "driver up to CUDA {}.{}".format(*divmod(driver.get("version", 0) // 10, 100))
    groups: dict[str, list[Box]] = {
        "Frameworks": [_box("TensorFlow", found["tensorflow"]), _box("Keras", found["keras"])],
        "Controllers": [_mpi(found["mpi"]), (True, "Gloo", "tfdist's own sockets: --no-mpi")],
        "Tensor Operations": [
            _box("MPI", library, "between hosts") if "missing" not in found["mpi"] else _mpi(found["mpi"]),
            _box("Sockets", library, "between hosts"),
            _box("Shared memory", library, "within a host"),
            _box("NCCL", nccl),
            _box("CUDA", driver, newest),
            (bool(xla), "XLA", xla.replace(",", ", ") or "needs TensorFlow 2.21"),
        ],
        "Compression": [(True, name, "") for name, wire in config.COMPRESSIONS.items() if wire],
        "Elastic Jobs": [_box("Sockets", library, "--elastic")],
    }
    blocks = [f"Available {title}:\n" + "\n".join(map(_line, boxes)) for title, boxes in groups.items()]
    return "\n\n".join([f"tfdist v{found['tfdist']}:", *blocks])


def _box(name: str, part: Mapping[str, Any], remark: str = "") -> Box:
    if "error" in part:
        return False, name, part["error"]
    return True, name, remark or str(part.get("text") or part.get("version", ""))


def _mpi(part: Mapping[str, Any]) -> Box:
    return (False, "MPI", "not installed") if "missing" in part else _box("MPI", part)


def _line(box: Box) -> str:
    there, name, remark = box
    first = remark.partition("\n")[0].removesuffix(" Tried:").rstrip(".")  # tfdist doctor shows what was tried
    told = f"  ({first})" if remark else ""
    return f"    [{'X' if there else ' '}] {name}{told}"


if __name__ == "__main__":
    sys.exit(main())
