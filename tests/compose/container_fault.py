"""What is done to the containers of a job of compose, and what undoes it. No test of its own."""

from __future__ import annotations

from typing import Any

# What a worker runs while no rank is on it.
_IDLE = {"tini", "bash", "sshd"}


class Fault:
    """Faults of a job's containers, by their names without that of the project."""

    def __init__(self, docker: Any, job: Any) -> None:
        self.docker, self.job = docker, job

    def container(self, service: str) -> str:
        return f"{self.job.name}-{service}"

    def kill(self, service: str) -> None:
        self.docker("kill", self.container(service))

    def stop(self, service: str) -> None:
        self.docker("stop", self.container(service))

    def pause(self, service: str) -> None:
        self.docker("pause", self.container(service))

    def unpause(self, service: str) -> None:
        self.docker("unpause", self.container(service))

    def disconnect(self, service: str) -> None:
        self.docker("network", "disconnect", f"{self.job.name}_default", self.container(service))

    def connect(self, service: str) -> None:
        """As compose connects it: by the name of the service, too."""
        alias = ("--alias", service.partition("-")[0])
        self.docker("network", "connect", *alias, f"{self.job.name}_default", self.container(service))

    def ranks(self, service: str) -> dict[int, str]:
        """What runs in a container for a rank: names, by process of this machine."""
        listed = self.docker("top", self.container(service), "-eo", "pid,comm").stdout.splitlines()[1:]
        named = (line.split() for line in listed)
        return {int(pid): name for pid, name in named if name not in _IDLE}
