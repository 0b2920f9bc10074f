"""A program that starts the ranks, such as mpirun: what each of them says of itself. It starts nothing."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.host.network import NOT_BETWEEN_HOSTS


@dataclass(frozen=True)
class Ssh:
    """How other hosts are reached."""

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
class Starter(abc.ABC):
    """One call of a program that starts the ranks. Each program is a subclass, in `choice.KINDS`.

    Attributes:
        path: The executable.
        hosts: The hosts used, with the slots used on each, in rank order.
        local: Whether all of them are this machine.
        cores: This machine's cores; they count only where `local`.
        interfaces: Network interfaces to restrict MPI to, as the user says; empty if it is left to us.
        fabric: Whether libfabric has something to find.
        ssh: How to reach other hosts.
        binding: Words that replace our choice of mapping and binding; None to choose.
        extra: Words of the user for the program, after ours, so that they win.
        host_timeout_s: The silence after which the program and its daemons give each other up.
        elastic: Whether the ranks are to outlive one that dies, which takes an MPI with ULFM (see `ulfm`).
        tcp: Whether MPI leaves fast fabrics alone.
        network: Without `interfaces` the network that MPI is restricted to between hosts, as in 10.0.0.0/24; empty
            where only bridges can be left out, None where MPI's own settings say it.
    """

    name: ClassVar[str]
    # Variables of each rank: its number, that of ranks, and both within its host.
    place_variables: ClassVar[tuple[str, ...]]
    # Whether it has daemons of its own on other hosts, to which it gets by ssh.
    own_daemons: ClassVar[bool] = False
    # The cluster manager in whose jobs alone it runs, and the variable by which such a job is known; empty for any.
    manager: ClassVar[str] = ""
    job_variable: ClassVar[str] = ""
    # Whether it is tried in these jobs where the user has chosen none.
    tried: ClassVar[bool] = False

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
        told = tuple(environment.get(name, "") for name in cls.place_variables)
        return told if all(told) else ()

    @classmethod
    def hosts_for_ranks(cls, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """Those of the hosts of a job on which it starts ranks."""
        return hosts

    def obstacle(self, python: str, environment: Mapping[str, str]) -> str:
        """Why it cannot start an MPI program of this Python here, by a trial if it takes one; empty if it can."""
        return ""

    @abc.abstractmethod
    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The words of the call. `environment` has the names to forward to other hosts; no value is used."""

    def settings(self, environment: Mapping[str, str], *, root: bool) -> dict[str, str]:
        """The variables to add to `environment`; what the user has set stays."""
        return {name: value for name, value in self._wanted(root).items() if name not in environment}

    def _wanted(self, root: bool) -> dict[str, str]:
        """The variables of MPI in the ranks."""
        wanted: dict[str, str] = {}
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
            # As many slots are declared as there are ranks, so Open MPI would not see by itself that cores are shared.
            wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        if self._networks:
            wanted["OMPI_MCA_btl_tcp_if_include"] = ",".join(self._networks)
        elif self.network is not None:
            wanted["OMPI_MCA_btl_tcp_if_exclude"] = NOT_BETWEEN_HOSTS
        if self.interfaces:
            wanted["NCCL_SOCKET_IFNAME"] = ",".join(self.interfaces)
        return wanted

    @property
    def _networks(self) -> tuple[str, ...]:
        """What MPI is restricted to; empty if nothing."""
        own = () if self.network is None else ("lo",) if self.local else (self.network,) if self.network else ()
        return self.interfaces or own
