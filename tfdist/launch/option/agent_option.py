"""The options for ranks on hosts where agents start them, or where the same command runs on every node."""

from __future__ import annotations

import argparse
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system.terminal.command_line import address, whole

# Who starts the ranks then.
DIRECT = "direct"
# How long to wait for agents, unless the user says otherwise: about as long as a cluster needs to find nodes.
AGENTS_TIMEOUT_S = 600.0

_agents = whole("a number of agents", 1)
_nodes = whole("a number of nodes", 1)


def add(group: Any) -> None:
    """Adds the options to a parser."""
    group.add_argument(
        "--agents",
        type=_agents,
        metavar="N",
        help="wait until N agents have come, and start the ranks on their hosts, without ssh and MPI; on each host run "
        "`tfdist agent --launcher HOST:PORT --key-file FILE`",
    )
    group.add_argument(
        "--listen", type=address, metavar="HOST:PORT", help="with --agents: the address and port where they come"
    )
    group.add_argument(
        "--nodes",
        type=_nodes,
        metavar="N",
        help="run the same command on N nodes: the one with the address of --rendezvous starts the job, the others "
        "serve it and exit with its status",
    )
    group.add_argument(
        "--rendezvous", type=address, metavar="HOST:PORT", help="with --nodes: an address of one of them, and a port"
    )
    group.add_argument(
        "--key-file",
        metavar="FILE",
        help="with --agents and --nodes: a file with the key that all of them have, which only you can read",
    )


def check(known: argparse.Namespace) -> None:
    """Completes `known`, and refuses what cannot be combined. Raises ConfigError."""
    if known.agents is not None and known.nodes is not None:
        raise ConfigError("--agents and --nodes cannot be combined; give only one")
    for name, value, needed, count in (
        ("--listen", known.listen, "--agents", known.agents),
        ("--rendezvous", known.rendezvous, "--nodes", known.nodes),
    ):
        if value is not None and count is None:
            raise ConfigError(f"{name} is for {needed} N; add it, or omit {name}")
        if value is None and count is not None:
            raise ConfigError(f"{needed} needs {name} HOST:PORT, the address and port of the launcher")
    if is_given(known):
        _check_others(known, "--nodes" if known.agents is None else "--agents")
    elif known.key_file is not None:
        raise ConfigError("--key-file is for --agents N and --nodes N; add one of them, or omit --key-file")
    if known.nodes is not None:
        _check_slots(known)


def is_given(known: argparse.Namespace) -> bool:
    """Whether the hosts are those that come."""
    return known.agents is not None or known.nodes is not None


def _check_others(known: argparse.Namespace, given: str) -> None:
    """The options that are needed, and those that are for other ways to start."""
    if known.key_file is None:
        raise ConfigError(
            f'{given} needs --key-file FILE. Make one with (umask 077; python -c "import secrets; '
            'print(secrets.token_hex(32))" > FILE), and copy it to every host'
        )
    for name, value in (
        ("-H", known.hosts),
        ("--hostfile", known.hostfile),
        ("--host-discovery-script", known.host_discovery_script),
    ):
        if value:
            raise ConfigError(f"{given} and {name} cannot be combined: the hosts are those that come")
    if known.starter not in (None, DIRECT):
        raise ConfigError(f"{given} starts the ranks without {known.starter}; omit the option that chooses it")
    known.starter = DIRECT


def _check_slots(known: argparse.Namespace) -> None:
    if known.slots_per_host is not None or not isinstance(known.num_proc, int):
        return
    if known.num_proc % known.nodes:
        raise ConfigError(
            f"-np {known.num_proc} cannot be shared by --nodes {known.nodes} equally; choose a multiple of it, or give "
            "--slots-per-host"
        )
    known.slots_per_host = known.num_proc // known.nodes
