"""MPICH's mpirun, which is called Hydra: its arguments and variables, and how to tell it from Open MPI's.

Documented at https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to/Using_the_Hydra_Process_Manager.md
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence

from tfdist.errors import ConfigError
from tfdist.launch.start.mpirun import forwarded
from tfdist.launch.start.starter import Starter

_TIMEOUT_S = 30.0
# Settings of MPICH and its transports. Open MPI forwards its own by itself.
_OF_MPICH = ("MPIR_", "MPICH_", "UCX_", "FI_")


def is_hydra(path: str) -> bool:
    """Whether this mpirun is MPICH's.

    Raises:
        ConfigError: If it cannot be run.
    """
    try:
        told = subprocess.run(
            [path, "--version"], check=False, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{path} cannot be run: {error}. Set TFDIST_MPI_HOME to the prefix of another MPI") from None
    return told.stdout.lstrip().startswith("HYDRA")


class Hydra(Starter):
    """One call of Hydra."""

    name = "Hydra"
    own_daemons = True
    descriptor_variables = ("PMI_FD",)
    place_variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        words = [self.path, "-n", str(self.processes)]
        if self.local:  # Hydra would take the hosts of a job of Slurm or PBS that this is within
            words += ["-hosts", "localhost", "-launcher", "fork"]
        else:
            words += ["-hosts", ",".join(map(str, self.hosts)), "-launcher", "ssh"]
            words += ["-genvlist", ",".join(forwarded(environment, *_OF_MPICH, exports=self.exports))]
            if self.interfaces:
                words += ["-iface", self.interfaces[0]]
        words += self._placement() if self.binding is None else self.binding
        return [*words, *self.extra, *supervisor]

    def _placement(self) -> list[str]:
        share = self.cores.count // self.processes
        if not self.local or self.processes == 1 or share < 1 or not self.cores.bindable:
            return []
        # An equal share of the cores per rank: bound to a single core, TensorFlow would leave the others idle.
        return ["-bind-to", f"core:{share}"]

    def _wanted(self, root: bool) -> dict[str, str]:
        wanted = {}
        if not self.local:
            wanted["HYDRA_LAUNCHER_EXTRA_ARGS"] = shlex.join(self.ssh.words())
        if self.tcp:
            wanted |= {"UCX_TLS": "self,sm,tcp", "FI_PROVIDER": "tcp", "NCCL_NET": "Socket"}
        if self.interfaces:
            names = ",".join(self.interfaces)
            wanted |= {"UCX_NET_DEVICES": names, "FI_TCP_IFACE": self.interfaces[0], "NCCL_SOCKET_IFNAME": names}
        return wanted
