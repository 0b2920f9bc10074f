"""A program that starts the ranks, such as mpirun: the interface that each of them implements."""

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
    """How to reach other hosts."""

    port: int | None = None
    identity_file: str | None = None

    def words(self) -> list[str]:
        # Nobody can type a password; host keys are still checked.
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
        cores: This machine's cores; used only if `local`.
        interfaces: Network interfaces to which the user restricts MPI; empty to choose.
        fabric: Whether there is a fabric for libfabric to find.
        ssh: How to reach other hosts.
        binding: Arguments that replace our choice of mapping and binding; None to choose.
        extra: The user's arguments for the program, after ours, so that they win.
        host_timeout_s: The silence after which the program and its daemons give up on each other.
        tcp: Whether MPI uses only TCP, and no faster fabric.
        network: Without `interfaces`, the network to which MPI is restricted between hosts, such as 10.0.0.0/24;
            empty to exclude only bridges, None to leave it to MPI's own settings.
        exports: Names of the user's variables that ranks on other hosts get too.
    """

    name: ClassVar[str]
    # Variables of each rank: its number, the number of ranks, and both within its host.
    place_variables: ClassVar[tuple[str, ...]]
    # Variables with the numbers of descriptors by which it serves its ranks, which their processes inherit.
    descriptor_variables: ClassVar[tuple[str, ...]] = ()
    # Whether it has its own daemons on other hosts, which it starts by ssh.
    own_daemons: ClassVar[bool] = False
    # The only cluster manager whose jobs it runs in, and the variable that identifies such a job; empty for any.
    manager: ClassVar[str] = ""
    job_variable: ClassVar[str] = ""
    # Whether it is tried in these jobs if the user has not chosen a starter.
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
    tcp: bool = False
    network: str | None = ""
    exports: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        return sum(host.slots for host in self.hosts)

    @classmethod
    def place(cls, environment: Mapping[str, str]) -> tuple[str, ...]:
        """A rank's number, the number of ranks, and both within its host, as set for a rank that it started.

        Empty in any other process.

        Raises:
            ConfigError: If the variables cannot be parsed.
        """
        told = tuple(environment.get(name, "") for name in cls.place_variables)
        return told if all(told) else ()

    @classmethod
    def hosts_for_ranks(cls, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """The hosts of a job on which it starts ranks."""
        return hosts

    def obstacle(self, python: str, environment: Mapping[str, str]) -> str:
        """Why it cannot start an MPI program with this Python here, by a trial if necessary; empty if it can."""
        return ""

    @abc.abstractmethod
    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The arguments of the call. `environment` has the names to forward to other hosts; its values are not used."""

    def call(
        self, supervisor: Sequence[str], environment: Mapping[str, str], *, root: bool
    ) -> tuple[list[str], dict[str, str]]:
        """The arguments of the call, which forward the settings too, and the settings."""
        settings = self.settings(environment, root=root)
        return self.command(supervisor, {**environment, **settings}), settings

    def settings(self, environment: Mapping[str, str], *, root: bool) -> dict[str, str]:
        """The variables to add to `environment`; what the user has set is kept."""
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
            # Searching for a fabric that does not exist makes MPI_Init take 1 s instead of 0.01 s.
            wanted |= {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_osc": "^ucx"}
        if self.local and self.processes > self.cores.count:
            # We declare as many slots as ranks, so Open MPI would not notice by itself that ranks share cores.
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
        """The interfaces or network to which MPI is restricted; empty if unrestricted."""
        own = () if self.network is None else ("lo",) if self.local else (self.network,) if self.network else ()
        return self.interfaces or own
