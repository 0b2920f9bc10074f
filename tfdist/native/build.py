"""The shared libraries of this installation: which there are, what they were built for, and how to get others.

The core is for everybody. An adapter serves the patch releases of one minor of TensorFlow, a plugin the MPIs of one
ABI. All are of one build: C++ passes between them.
"""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from tfdist import errors
from tfdist.native import requirement

FOLDER = Path(__file__).parents[1]
_CORE, _ADAPTER, _PLUGIN = "libtfdist_core.so", "libtfdist_tf", "libtfdist_mpi_"


def core() -> Path:
    """The library with the engine.

    Raises:
        BuildError: If it does not exist.
    """
    path = FOLDER / _CORE
    if not path.is_file():
        raise errors.BuildError(
            f"tfdist's shared library is missing: {_CORE} is not in {FOLDER}. tfdist was imported from its source "
            "folder, or its build is incomplete. Leave that folder, or install it: pip install '.[cpu]'"
        )
    return path


def adapter(tensorflow: str) -> Path:
    """The library with the ops for a version of TensorFlow, such as "2.21.0".

    Raises:
        BuildError: If there is none, or it is of another build than the core; the message has the minors that there
            are, and what to do.
    """
    minor = ".".join(tensorflow.split(".")[:2])
    there = _parts(_ADAPTER)
    if minor not in there:
        remedies = []
        if there:
            wanted = requirement.tensorflow(f"=={max(there, key=_numbers)}.*")
            remedies.append(f"Install a TensorFlow that it has one for (pip install {wanted}).")
        if tuple(_numbers(minor)) >= requirement.oldest("tensorflow"):
            remedies.append(f"{'Or build' if there else 'Build'} tfdist for this one: {reinstall()}")
        raise errors.BuildError(
            f"TensorFlow {tensorflow} is installed, but tfdist has libraries for "
            f"{f'TensorFlow {_listed(there)}' if there else 'none'}; TensorFlow's C++ interface differs between minor "
            f"releases. {' '.join(remedies)}"
        )
    return _of_this_build(there[minor])


def plugin(abi: str, mpi: str) -> Path:
    """The library that connects the engine with an MPI.

    Args:
        abi: "openmpi" or "mpich".
        mpi: Its name and version, for the message.

    Raises:
        BuildError: If there is none, or it is of another build than the core.
    """
    there = _parts(_PLUGIN)
    if abi not in there:
        has = " and ".join(record(path)["mpi"] for path in there.values()) or "no MPI"
        raise errors.BuildError(
            f"{mpi} was loaded, but tfdist was built for {has}. Build it for this MPI: TFDIST_MPI_HOME=<its prefix> "
            f"{reinstall()}, or set TFDIST_MPI_HOME to the prefix of an MPI that it was built for."
        )
    return _of_this_build(there[abi])


def record(path: Path) -> dict[str, str]:
    """What a library was built for: "build" and "compiler"; of an adapter "tensorflow", the releases that it is known
    to fit, and "xla", the platforms for which XLA compiles the ops; of a plugin "mpi".

    It is text inside the library, so it can be read even if the library cannot be loaded.

    Raises:
        BuildError: If there is no record.
    """
    match = re.search(rb'\{"build": "[^{}]*\}', path.read_bytes())
    if match is None:
        raise errors.BuildError(f"{path.name} has no build record. Install tfdist again: {reinstall()}")
    found: dict[str, str] = json.loads(match.group())
    return found


def summary() -> str:
    """What this installation was built for, such as "TensorFlow 2.20 and 2.21, Open MPI 5.0.11"."""
    mpis = [record(path)["mpi"] for path in _parts(_PLUGIN).values()]
    return f"TensorFlow {_listed(_parts(_ADAPTER))}, {' and '.join(mpis) or 'no MPI'}"


def reinstall() -> str:
    """The command that builds tfdist for what is installed now, from where it was installed (PEP 610)."""
    try:
        recorded = metadata.distribution("tfdist").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
    origin = json.loads(recorded) if recorded else {}
    url = urlparse(origin.get("url", ""))
    source = Path(unquote(url.path))
    # A wheel would bring the same libraries again.
    known = "dir_info" in origin and url.scheme == "file" and (source / "CMakeLists.txt").is_file()
    return f"pip install --force-reinstall --no-deps {shlex.quote(str(source)) if known else '<its source folder>'}"


def _of_this_build(path: Path) -> Path:
    ours, theirs = record(core())["build"], record(path)["build"]
    if ours != theirs:
        raise errors.BuildError(
            f"{path.name} is of build {theirs}, but {_CORE} of build {ours}: two installations are mixed. Install "
            f"tfdist again: {reinstall()}"
        )
    return path


def _parts(prefix: str) -> dict[str, Path]:
    found = sorted(FOLDER.glob(f"{prefix}*.so"))
    return {path.name.removeprefix(prefix).removesuffix(".so"): path for path in found}


def _numbers(minor: str) -> list[int]:
    return [int(part) for part in minor.split(".")]


def _listed(minors: dict[str, Path]) -> str:
    return " and ".join(sorted(minors, key=_numbers)) if len(minors) < 3 else ", ".join(sorted(minors, key=_numbers))
