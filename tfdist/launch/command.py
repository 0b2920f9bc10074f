"""The `tfdistrun` command from its arguments to its exit status. What happens in between is planned here, not done."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.launch import core, host, mpirun, option, program
from tfdist.launch.call import Call
from tfdist.launch.console import Console
from tfdist.launch.launcher import Launcher, Plan

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script `tfdistrun`."""
    try:
        launcher, console = prepare(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        print(f"tfdistrun: {error}", file=sys.stderr)
        return USAGE_ERROR
    with contextlib.closing(console):
        status = launcher.run()
        for line in launcher.heard:
            console.say(line)
        if launcher.explanation:
            console.say(f"tfdistrun: {launcher.explanation}")
        return status


def prepare(argv: Sequence[str], call: Call | None = None) -> tuple[Launcher, Console]:
    """All that comes before the first process: a launcher that is ready to run, and its console. Raises ConfigError."""
    known, command = option.parse(argv)
    plan, remarks = make_plan(known, command, dict(os.environ))
    console = Console(
        timestamps=known.prefix_output_with_timestamp,
        chatter=known.verbose,
        folder=known.output_filename,
        ranks=known.num_proc,
    )
    launcher = Launcher(plan, console, call)
    for remark in remarks:
        console.say(f"tfdistrun: {remark}")
    return launcher, console


def make_plan(known: Namespace, command: Sequence[str], environment: dict[str, str]) -> tuple[Plan, list[str]]:
    """Checks everything that can be checked before a process is started.

    Returns:
        The plan, and lines to show.

    Raises:
        ConfigError: For whatever would make the job fail to start.
    """
    environment |= option.variables(known)
    settings = config.read(environment)
    hosts = _hosts(known)
    elsewhere = {item.name: host.address(item.name) for item in hosts if not host.is_local(item.name)}
    everywhere = program.resolve(command, check_files=len(elsewhere) < len(hosts))
    if known.data_workers and elsewhere:
        raise ConfigError(
            "--data-workers serves ranks of this machine, and others are to run elsewhere. Start a service of its own "
            "(tfdist data-service --help) and name it by TFDIST_DATA_SERVICE=HOST:PORT"
        )
    cores = core.available()
    call = mpirun.Mpirun(
        path=mpirun.find(settings.mpi_home, environment),
        hosts=hosts,
        local=not elsewhere,
        cores=cores,
        interfaces=known.network_interfaces,
        fabric=mpirun.has_fabric(),
        ssh=mpirun.Ssh(known.ssh_port, known.ssh_identity_file),
        binding=known.binding_args,
        extra=known.mpi_args,
        host_timeout_s=settings.host_timeout_seconds,
    )
    warnings = [program.foreign_interpreter(everywhere), option.crowding(call.processes, cores) if call.local else None]
    remarks = option.notes(known) + [line for line in warnings if line is not None]
    plan = Plan(
        call,
        everywhere,
        environment,
        known.start_timeout,
        elsewhere,
        known.verbose,
        known.data_workers,
        known.autoscale,
    )
    return plan, remarks


def _hosts(known: Namespace) -> tuple[host.Host, ...]:
    if known.hosts:
        return host.used(host.parse_list(known.hosts), known.num_proc)
    if known.hostfile:
        try:
            text = Path(known.hostfile).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--hostfile {known.hostfile} cannot be read: {error}") from None
        return host.used(host.parse_file(text, known.hostfile), known.num_proc)
    # Without a list of hosts there are no slots to exceed: this machine takes as many ranks as are asked for.
    return (host.Host("localhost", known.num_proc),)
