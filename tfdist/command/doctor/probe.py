"""Examines TensorFlow and the engine for the doctor, in a separate process, which may crash.

Prints JSON. Starts no MPI and no engine, and takes no GPU.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from tfdist import __version__, config
from tfdist.errors import TfdistError
from tfdist.native import adapter, build, library, mpi, requirement


def look() -> dict[str, Any]:
    """What is installed; a missing component has an "error"."""
    return {
        "tfdist": __version__,
        "python": platform.python_version(),
        "tensorflow": _guarded(_tensorflow),
        "keras": _guarded(_keras),
        "mpi": _guarded(_mpi),
        "library": _guarded(_library),
        "gpus": _guarded(lambda: library.describe_gpus(config.read())),
        "twins": _twins(),
    }


def main() -> int:
    """Prints the report as one line."""
    report = json.dumps(look())
    print(report)
    return 0


def _guarded(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return part()
    except metadata.PackageNotFoundError as error:
        return {"error": f"{error.name} is not installed"}
    except TfdistError as error:
        return {"error": str(error)}


def _tensorflow() -> dict[str, Any]:
    tensorflow = adapter.import_tensorflow()
    return {
        "version": tensorflow.__version__,
        "cuda": bool(tensorflow.test.is_built_with_cuda()),
        "gpus": len(tensorflow.config.list_physical_devices("GPU")),
    }


def _mpi() -> dict[str, Any]:
    return {"missing": True} if mpi.is_missing() else {"version": mpi.version()}


def _keras() -> dict[str, Any]:
    """TensorFlow's release candidates come with Keras' nightly build, a package of another name."""
    try:
        version = metadata.version("keras-nightly")
    except metadata.PackageNotFoundError:
        version = metadata.version("keras")
    if tuple(map(int, version.split(".")[:2])) < requirement.oldest("keras"):
        return {"error": f"Keras {version} is installed, and tfdist needs {requirement.versions('keras')}"}
    return {"version": version}


def _twins() -> dict[str, list[str]]:
    """Packages that bring files of the same names, where more than one of them is installed."""
    found = {}
    for kind, packages in {"TensorFlow": requirement.TENSORFLOWS, "MPI": requirement.MPIS}.items():
        there = [" ".join(each) for each in requirement.installed(packages).items()]
        if len(there) > 1:
            found[kind] = there
    return found


def _library() -> dict[str, Any]:
    """Loads all: the core, the plugin for the MPI, if there is one, and the adapter for the TensorFlow."""
    library.load()
    if not mpi.is_missing():
        mpi.connect()
    adapter.ops()
    return {"built": {"for": build.summary(), "xla": adapter.record()["xla"]}}


if __name__ == "__main__":
    sys.exit(main())
