"""LSF's jsrun: the arguments to start ranks with it. Never tested on a machine that has jsrun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.errors import ConfigError
from tfdist.launch.host.host import Host
from tfdist.launch.start.starter import Starter


@dataclass(frozen=True)
class Jsrun(Starter):
    """One call of jsrun; `path` and `extra` are jsrun's. It starts the ranks where LSF has put the job.

    Raises:
        ConfigError: If the hosts have unequal numbers of ranks, which resource sets do not support.
    """

    name = "jsrun"
    manager = "LSF"
    job_variable = "LSB_JOBID"
    place_variables = tuple(f"JSM_NAMESPACE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

    def __post_init__(self) -> None:
        if len({host.slots for host in self.hosts}) != 1:
            raise ConfigError(
                f"--jsrun starts equally many ranks on every host, but received {', '.join(map(str, self.hosts))}; "
                "choose -np divisible by the number of hosts"
            )

    @classmethod
    def hosts_for_ranks(cls, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """Drops the host on which LSF runs the job script: the first, if it has one slot and all others have more."""
        first, *others = hosts
        launching = first.slots == 1 and others and all(host.slots > 1 for host in others)
        return tuple(others) if launching else hosts

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """One resource set per host, with all of its resources. The environment is passed on."""
        words = [self.path, f"--nrs={len(self.hosts)}", "--rs_per_host=1", f"--tasks_per_rs={self.hosts[0].slots}"]
        words += ["--cpu_per_rs=ALL_CPUS", "--gpu_per_rs=ALL_GPUS"]
        return [*words, *(("--bind=none",) if self.binding is None else self.binding), *self.extra, *supervisor]
