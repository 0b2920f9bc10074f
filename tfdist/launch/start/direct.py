"""Starts ranks without MPI: forks those of this machine, and asks an agent on each other host to do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfdist.launch.host import host
from tfdist.launch.start.starter import Starter
from tfdist.system import job_place


class Direct(Starter):
    """The part of it on this machine. The ranks connect by sockets."""

    name = "direct"
    place_variables = job_place.OWN

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The program of the supervisors with the ranks of this machine: the first, their number, and that of all."""
        here = [rank for rank, name in enumerate(host.placement(self.hosts)) if self.local or host.is_local(name)]
        return [*supervisor, str(here[0] if here else 0), str(len(here)), str(self.processes)]

    def _wanted(self, root: bool) -> dict[str, str]:
        wanted = {"NCCL_NET": "Socket"} if self.tcp else {}
        if self.interfaces:
            wanted["NCCL_SOCKET_IFNAME"] = ",".join(self.interfaces)
        return wanted
