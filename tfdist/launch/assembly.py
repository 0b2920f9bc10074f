"""The hosts where agents start the ranks: those that come by themselves, other nodes of `--nodes`, and ssh's."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tfdist.errors import ConfigError
from tfdist.launch.host import core, host
from tfdist.launch.host.host import Host
from tfdist.launch.option import agent_option
from tfdist.launch.run import listener
from tfdist.launch.run.plan import Plan
from tfdist.launch.start.direct import Direct
from tfdist.protocol import key_file, mesh
from tfdist.system.network import endpoint

if TYPE_CHECKING:
    from tfdist.launch.run.force import Force
    from tfdist.launch.run.reserve import Reserve

# What needs TLS is imported where agents are: it takes 20 ms, and most jobs have none.

# Messages have at most 1 MiB, in which some characters take six bytes.
_MOST_BYTES = 1 << 17
_SLURM = "Slurm"


def open_port(known: Namespace) -> socket.socket | None:
    """The port where agents come; None if there are none, or if another node of `--nodes` has it.

    Raises:
        ConfigError: If it cannot be opened.
    """
    if known.agents is not None:
        return listener.named(known.listen, "--listen")
    if known.nodes is None:
        return None
    name, port = known.rendezvous
    try:
        return mesh.listen(host.address(name), port) if host.is_local(name) else None
    except ConfigError:  # in a cluster, the name of another node may appear when that starts
        return None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # several nodes on one machine: the first has it
            return None
        raise ConfigError(
            f"--rendezvous {endpoint.text((name, port))}: cannot listen there: {error.strerror}"
        ) from None


def follow(known: Namespace, say: Callable[[str], None]) -> int:
    """Serves as one of the nodes that do not start the job; returns its exit status.

    Raises:
        ConfigError: If the launcher has another key or version.
        PeerLostError: If it is not there in time.
    """
    from tfdist.launch.agent.agent import Post, serve

    key = key_file.read(known.key_file, "--key-file")
    say(f"this node serves the job of {endpoint.text(known.rendezvous)}, which shows its output")
    return serve(Post(known.rendezvous, key, os.uname().nodename, _own_slots(known), known.agents_timeout), say)


def gathered(known: Namespace, say: Callable[[str], None]) -> Force | None:
    """The agents that come by themselves; None if the job needs none.

    Raises:
        ConfigError: If the key file cannot be used, or an agent has another version.
        PeerLostError: If not all come in time.
    """
    if known.listener is None:
        return None
    count = known.agents if known.agents is not None else known.nodes - 1
    if not count:
        known.listener.close()
        return None
    from tfdist.launch.run import force

    key = key_file.read(known.key_file, "--key-file")
    reserved = () if known.nodes is None else (os.uname().nodename,)
    return force.gather(known.listener, count, key, known.agents_timeout, say, reserved)


def offered(known: Namespace, there: Force | None) -> tuple[Host, ...]:
    """The hosts for the ranks, in their order; sets -np if the user has not."""
    hosts = (*_own(known), *(there.hosts if there is not None else ()))
    if known.num_proc is None:
        known.num_proc = sum(each.slots for each in hosts)
    return hosts


def reserve(known: Namespace, plan: Plan, say: Callable[[str], None]) -> Reserve | None:
    """The agents that may come while an elastic job runs; None where none do by themselves."""
    if plan.force is None or not agent_option.is_given(known):
        return None
    from tfdist.launch.run.reserve import Reserve

    return Reserve(plan.force, key_file.read(known.key_file, "--key-file"), say, [each.name for each in _own(known)])


def present(known: Namespace, there: Reserve) -> tuple[Host, ...]:
    """The hosts for the ranks while the job runs."""
    return (*_own(known), *there.hosts())


def with_summons(plan: Plan, known: Namespace, say: Callable[[str], None]) -> Plan:
    """The plan, after agents were started by ssh or srun where a job without MPI has other hosts.

    Raises:
        ConfigError: If they cannot be started.
        PeerLostError: If one of them cannot be reached, or does not come in time.
    """
    starter = plan.starter
    if not isinstance(starter, Direct) or plan.force is not None or not starter.elsewhere:
        return plan
    from tfdist.launch.agent.summons import Summons
    from tfdist.launch.run import force

    of_slurm = known.allocation is not None and known.allocation.manager == _SLURM
    path = plan.environment.get("PATH", os.defpath)
    srun = (shutil.which("srun", path=path) or "") if of_slurm else ""
    if not srun and shutil.which("ssh", path=path) is None:
        raise ConfigError(
            f"there is no ssh on PATH to start ranks on {', '.join(starter.elsewhere)}; start an agent on each host "
            "instead, and use --agents (see tfdist agent --help)"
        )
    hosts = [each for each in starter.hosts if each.name in starter.elsewhere]
    summons = Summons(hosts, starter.ssh, srun, plan.environment)
    door = listener.towards(starter)
    try:
        there = force.summon(door, summons, [each.name for each in hosts], plan.start_timeout_s, say)
    except BaseException:
        door.close()
        raise
    return replace(plan, force=there)


def exports(known: Namespace, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the variables to export. Raises ConfigError if one is not set."""
    names = tuple(dict.fromkeys(name for names in known.export for name in names))
    if unset := [name for name in names if name not in environment]:
        raise ConfigError(f"--export {','.join(unset)}: not set in this environment; set it, or omit it")
    return names


def check_size(plan: Plan) -> None:
    """Raises ConfigError if the variables for other hosts do not fit into a message."""
    names = plan.names_for_agents(plan.environment)
    size = sum(len(name) + len(plan.environment[name]) for name in names)
    if plan.force is not None and size > _MOST_BYTES:
        largest = max(names, key=lambda name: len(plan.environment[name]))
        raise ConfigError(
            f"the variables for other hosts have {size} bytes; at most {_MOST_BYTES} can be sent. The largest is "
            f"{largest}"
        )


def _own(known: Namespace) -> tuple[Host, ...]:
    """This node, where it is one of several."""
    return () if known.nodes is None else (Host(os.uname().nodename, _own_slots(known)),)


def _own_slots(known: Namespace) -> int:
    return int(known.slots_per_host or core.available().count)
