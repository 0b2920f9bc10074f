"""What is done to the containers of a job of compose, and what undoes it. No test of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What a worker runs while no rank is on it.
_IDLE = {"tini", "bash", "sshd"}
SECONDS_TO_FREEZE = 60
# Docker's own 10 are too few for an agent and its ranks on a busy machine, and then it kills them.
SECONDS_TO_STOP = 60


class Fault:
    """Faults of a job's containers, by their names without that of the project."""

    def __init__(self, docker: Any, job: Any, wait_until: Callable[..., None]) -> None:
        self.docker, self.job, self.wait_until = docker, job, wait_until

    def container(self, service: str) -> str:
        return f"{self.job.name}-{service}"

    def kill(self, service: str) -> None:
        self.docker("kill", self.container(service))

    def stop(self, service: str) -> None:
        self.docker("stop", "-t", str(SECONDS_TO_STOP), self.container(service))

    def pause(self, service: str) -> None:
        """On a busy machine the engine may need several attempts: what forks while it is frozen stops the freezing."""

        def frozen() -> bool:
            done = self.docker("pause", self.container(service), check=False)
            assert done.returncode == 0 or "unable to freeze" in done.stderr, done.stderr
            return done.returncode == 0

        self.wait_until(frozen, SECONDS_TO_FREEZE, f"{self.container(service)} to freeze")

    def unpause(self, service: str) -> None:
        self.docker("unpause", self.container(service))

    def disconnect(self, service: str) -> None:
        self.docker("network", "disconnect", f"{self.job.name}_default", self.container(service))

    def connect(self, service: str) -> None:
        """As compose connects it: by the name of the service, too."""
        alias = ("--alias", service.partition("-")[0])
        self.docker("network", "connect", *alias, f"{self.job.name}_default", self.container(service))

    def _runs(self, service: str) -> bool:
        done = self.docker("inspect", "--format", "{{.State.Running}}", self.container(service))
        return "true" in done.stdout

    def ranks(self, service: str) -> dict[int, str]:
        """What runs in a container for a rank: names, by process of this machine. In one that has ended, nothing."""
        done = self.docker("top", self.container(service), "-eo", "pid,comm", check=False)
        if done.returncode != 0:  # it has ended, or ends while the engine looks into it, which then says other things
            self.wait_until(lambda: not self._runs(service), what=f"the end of {service}, where: {done.stderr}")
        listed = done.stdout.splitlines()[1:]
        named = (line.split() for line in listed)
        return {int(pid): name for pid, name in named if name not in _IDLE}
