"""LSF's jsrun: the words to start ranks with it, as on machines of IBM. Pure; never run on one."""

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
        ConfigError: If the hosts have unequal numbers of ranks, which resource sets cannot.
    """

    name = "jsrun"
    manager = "LSF"
    job_variable = "LSB_JOBID"
    place_variables = tuple(f"JSM_NAMESPACE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

    def __post_init__(self) -> None:
        if len({host.slots for host in self.hosts}) != 1:
            raise ConfigError(
                f"--jsrun starts as many ranks on one host as on another, and not {', '.join(map(str, self.hosts))}; "
                "choose -np so that it can be divided by the number of hosts"
            )

    @classmethod
    def hosts_for_ranks(cls, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """Without the host that LSF runs the job's script on: the first, with one slot, where all others have more."""
        first, *others = hosts
        launching = first.slots == 1 and others and all(host.slots > 1 for host in others)
        return tuple(others) if launching else hosts

    def command(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """A resource set for each host, with all that it has. The environment goes along."""
        words = [self.path, f"--nrs={len(self.hosts)}", "--rs_per_host=1", f"--tasks_per_rs={self.hosts[0].slots}"]
        words += ["--cpu_per_rs=ALL_CPUS", "--gpu_per_rs=ALL_GPUS"]
        return [*words, *(("--bind=none",) if self.binding is None else self.binding), *self.extra, *supervisor]
