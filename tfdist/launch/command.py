"""The `tfdistrun` command: parses arguments, plans the job and returns its exit status. The launcher runs the job."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist import config
from tfdist.errors import ConfigError, PeerLostError, StoreError
from tfdist.launch import assembly
from tfdist.launch.host import core, host, interface, network
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.discovery import DiscoveryError, find_hosts, wait_for_hosts
from tfdist.launch.job.membership import Rules
from tfdist.launch.option import agent_option, default_file, horovod_option, option
from tfdist.launch.run.console import Console
from tfdist.launch.run.generations import Generations
from tfdist.launch.run.launcher import Launcher
from tfdist.launch.run.plan import Plan
from tfdist.launch.start import choice, hydra, mpirun
from tfdist.launch.start.direct import Direct
from tfdist.launch.start.starter import Ssh, Starter
from tfdist.launch.wire.call import Call, check_files
from tfdist.protocol import backup, commit_file, member
from tfdist.system import home, program
from tfdist.system.local_path import address_of, local_path
from tfdist.system.rank import ancestry, job_place
from tfdist.system.terminal import descriptor, screen

if TYPE_CHECKING:
    import socket

    from tfdist.launch.run.force import Force
    from tfdist.storage.mirror import Mirror

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130
# How long a host with an agent is left alone after a loss, also if the agent has come again: at first, and at most.
_COOLDOWN_OF_AGENTS_S = (5.0, 600.0)
_AGENTS_ARE_GONE = (
    "the agents of a job end with its ranks. Start both again; with --backup-dir the job continues from its last state"
)
# By name, not imported: it belongs to the command `tfdist`, which may import the launcher but not vice versa.
_BUILD_CHECK = (sys.executable, "-m", "tfdist.command.doctor.build_check")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script `tfdistrun`."""
    descriptor.open_streams()
    home.fill()
    console = None
    try:
        words = sys.argv[1:] if argv is None else argv
        known, command = option.parse(words, _allocation, lambda: default_file.find(_say))
        if known.check_build:
            return subprocess.run(_BUILD_CHECK, env=os.environ | {"PYTHONSAFEPATH": "1"}, check=False).returncode
        if known.print_config:
            print(known.print_config, end="")
            return 0
        known.listener = assembly.open_port(known)
        if known.nodes is not None and known.listener is None:
            return assembly.follow(known, _say)
        plan, console = _prepare(known, command)
        job = _make_job(known, plan, console)
    except (ConfigError, PeerLostError, KeyboardInterrupt) as error:  # hosts may be waited for
        if console is not None:  # what it has to say comes before
            console.close()
        interrupted = isinstance(error, KeyboardInterrupt)
        _say("interrupted before any rank was started" if interrupted else str(error), screen.ERROR)
        return INTERRUPTED if interrupted else USAGE_ERROR if isinstance(error, ConfigError) else FAILURE
    with contextlib.closing(console):
        status = job.run()
        for line in job.heard:
            console.quote(line)
        if job.explanation:
            console.say(f"tfdistrun: {job.explanation}", screen.ERROR)
        return status


def _allocation(wanted: str | None) -> Allocation | None:
    return choice.allocation(wanted, os.environ)


def prepare(
    argv: Sequence[str],
    call: Call | None = None,
    spell: Callable[[str], str] = str,
    door: socket.socket | None = None,
) -> tuple[Launcher | Generations, Console]:
    """Does everything up to the first process: returns a job that is ready to run, and its console.

    If no option names hosts, the job runs on this machine, even inside a cluster job. `spell` translates the launcher's
    messages into the caller's terms. Agents come to `door`, which listens already.

    Raises:
        ConfigError: If an option cannot be used.
        PeerLostError: If another host cannot be reached.
    """
    home.fill()
    known, command = option.parse(argv)
    known.listener = door
    plan, console = _prepare(known, command, spell)
    if call is not None:
        check_files(plan.starter.processes)
    return _make_job(known, plan, console, call), console


def _prepare(known: Namespace, command: Sequence[str], spell: Callable[[str], str] = str) -> tuple[Plan, Console]:
    plan, remarks = make_plan(known, command, dict(os.environ))
    console = Console(
        timestamps=known.prefix_output_with_timestamp,
        chatter=known.verbose,
        folder=_output(known, lambda text: console.say(f"tfdistrun: {text}")),
        ranks=known.num_proc,
        spell=spell,
    )
    for remark in filter(None, [known.count_note, *remarks]):
        console.say(f"tfdistrun: {remark}")
    return plan, console


def _output(known: Namespace, say: Callable[[str], None]) -> str | Mirror | None:
    """Where the ranks' output goes besides to the terminal."""
    address = None if known.output_filename is None else address_of(known.output_filename)
    if address is None:
        return known.output_filename
    # Few jobs write to a store, and others start faster without this.
    from tfdist.storage.mirror import Mirror

    seconds = config.read({**os.environ, **_variables(known, dict(os.environ))}).upload_seconds
    try:
        return Mirror(address, seconds, say)
    except StoreError as error:
        raise ConfigError(f"--output-filename {address}: {error}") from None


def _make_job(known: Namespace, plan: Plan, console: Console, call: Call | None = None) -> Launcher | Generations:
    least = option.least(known)
    if least is None:
        return Launcher(assembly.with_summons(plan, known, _say), console, call)
    return _make_generations(known, plan, least, console, call)


def _make_generations(known: Namespace, plan: Plan, least: int, console: Console, call: Call | None) -> Generations:
    cooldown = known.blacklist_cooldown_range
    script = known.host_discovery_script
    most = known.max_np if known.max_np is not None else math.inf if script else known.num_proc
    reserve = assembly.reserve(known, plan, lambda text: console.say(f"tfdistrun: {text}"))
    if reserve is not None:
        plan = replace(plan, reserve=reserve)
        cooldown = cooldown or _COOLDOWN_OF_AGENTS_S
    rules = Rules(
        least=least,
        most=most,
        reset_limit=known.reset_limit,
        cooldown_s=None if cooldown is None else (cooldown[0], cooldown[1]),
        timeout_s=option.elastic_timeout(known),
        discovers=script is not None,
        final="" if not agent_option.is_given(known) else _AGENTS_ARE_GONE,
    )

    def look() -> tuple[host.Host, ...]:
        if reserve is not None:
            return assembly.present(known, reserve)
        return find_hosts(script, known.slots_per_host or 1)

    def summon(plan: Plan) -> Plan:
        if agent_option.is_given(known):  # they have come
            return plan
        return assembly.with_summons(replace(plan, force=None), known, lambda text: console.say(f"tfdistrun: {text}"))

    may_change = script is not None or reserve is not None
    offered = assembly.offered(known, plan.force) if agent_option.is_given(known) else _offered(known)
    return Generations(plan, rules, offered, console, look if may_change else None, summon, call)


def make_plan(known: Namespace, command: Sequence[str], environment: dict[str, str]) -> tuple[Plan, list[str]]:
    """Checks everything that can be checked before a process is started.

    Returns:
        The plan, and lines to show.

    Raises:
        ConfigError: If the job could not start.
        PeerLostError: If agents that it waits for do not come.
    """
    environment = _without_job(environment)
    environment |= _variables(known, environment)
    settings = config.read(environment)
    _check_autotune(known, settings, option.least(known))
    _check_timeline(known, settings)
    _check_stores(settings)
    force = assembly.gathered(known, _say)
    try:
        return _plan(known, command, environment, settings, force)
    except ConfigError as error:
        if force is not None:
            force.dismiss(USAGE_ERROR, f"the launcher: {error}")
        raise


def _plan(
    known: Namespace, command: Sequence[str], environment: dict[str, str], settings: config.Config, force: Force | None
) -> tuple[Plan, list[str]]:
    least = option.least(known)
    hosts = _hosts(known, force)
    elsewhere = host.addresses_elsewhere(hosts) if force is None else _of_agents(force, hosts)
    folders = (program.HOROVODS_NAMES,) if settings.as_horovod else ()
    everywhere = program.resolve(command, check_files=len(elsewhere) < len(hosts), folders=folders)
    if known.data_workers and elsewhere:
        raise ConfigError(
            "--data-workers serves only ranks on this machine, but some ranks run on other hosts. Start a separate "
            "data service (tfdist data-service --help) and set TFDIST_DATA_SERVICE=HOST:PORT"
        )
    notes = interface.check(known.network_interfaces, local=not elsewhere)
    cores = core.available()
    kind, path, without = _find_starter(known, settings, environment)
    call: Starter = kind(
        path=path,
        hosts=hosts,
        local=not elsewhere,
        cores=cores,
        interfaces=known.network_interfaces,
        fabric=mpirun.has_fabric(),
        ssh=Ssh(known.ssh_port, known.ssh_identity_file),
        binding=known.binding_args,
        extra=known.mpi_args,
        host_timeout_s=settings.host_timeout_seconds,
        tcp=known.tcp,
        network=network.choose(elsewhere.values(), known.mpi_args, environment, path),
        exports=assembly.exports(known, environment),
        **({"served": frozenset(elsewhere)} if kind is Direct else {}),
    )
    call, why = (call, without) if kind is Direct else choice.choose(known.starter, call, known.allocation, environment)
    warnings = [program.foreign_interpreter(everywhere), option.crowding(call.processes, cores) if call.local else None]
    if call.processes < known.num_proc:
        warnings.append(_shortage(known, hosts))
    unread = config.misspelled(environment) + config.horovod_leftovers(environment)
    remarks = [*unread, *horovod_option.notes(known), *notes, *filter(None, warnings)]
    if known.verbose:
        remarks += _choices(known, call, why)
    plan = Plan(
        call,
        everywhere,
        environment,
        known.start_timeout,
        elsewhere,
        known.verbose,
        known.data_workers,
        known.autoscale,
        least,
        "" if least is None else f"tfdist-{secrets.token_hex(8)}",
        "" if known.backup_dir is None else _backup(known.backup_dir, here=len(elsewhere) < len(hosts)),
        force,
        settings.stall_shutdown_seconds,
    )
    assembly.check_size(plan)
    return plan, remarks


def _of_agents(force: Force, hosts: Sequence[host.Host]) -> dict[str, str]:
    """The addresses of the used hosts that have an agent, by name."""
    used = {each.name for each in hosts}
    return {name: address for name, address in force.addresses.items() if name in used}


def _find_starter(
    known: Namespace, settings: config.Config, environment: dict[str, str]
) -> tuple[type[Starter], str, str]:
    """The kind of starter, unless a cluster manager has a better one; its program; and why it needs no MPI."""
    if known.starter == Direct.name:
        _check_direct(known)
        return Direct, sys.executable, "chosen by an option"
    if option.least(known) is not None:
        if known.starter is not None:
            given = "mpi" if known.starter == mpirun.Mpirun.name else known.starter
            raise ConfigError(f"an elastic job runs without MPI; omit --{given}, or --elastic")
        _check_direct(known)
        return Direct, sys.executable, "elastic jobs run without MPI"
    try:
        path = mpirun.find(settings.mpi_home, environment)
    except ConfigError:
        if known.starter is not None or settings.mpi_home:
            raise
        _check_direct(known)
        return Direct, sys.executable, f"there is no mpirun next to {sys.executable} or on PATH"
    return (hydra.Hydra if hydra.is_hydra(path) else mpirun.Mpirun), path, ""


def _check_direct(known: Namespace) -> None:
    """Refuses what only MPI can do."""
    for name, given in (("--mpi-args", known.mpi_args), ("--binding-args", known.binding_args)):
        if given:
            why = "an elastic job runs" if option.least(known) is not None else "this job runs"
            raise ConfigError(f"{name} is for mpirun, but {why} without MPI; omit it, or start with --mpi")


def _without_job(environment: dict[str, str]) -> dict[str, str]:
    """Without the variables that mark this process as part of a job: a job started by a rank is a separate one."""
    inherited = ("TFDIST_ELASTIC", member.BACKUP_VARIABLE, *job_place.OWN)
    environment = {name: value for name, value in environment.items() if name not in inherited}
    return ancestry.without_rank(environment) if ancestry.origin(environment) else environment


def _choices(known: Namespace, call: Starter, why: str) -> list[str]:
    """What was chosen on the user's behalf, one line each."""
    chosen = [f"{call.name} starts the ranks: {why}"] if why else []
    if known.allocation is not None:
        chosen.append(f"{call.processes} ranks on hosts of the allocation {known.allocation}")
    if not call.local and not call.interfaces:
        between = "as configured in MPI" if call.network is None else call.network or "all except bridges"
        chosen.append(f"network between the hosts: {between}; choose another with --network-interfaces")
    return chosen


def _shortage(known: Namespace, hosts: tuple[host.Host, ...]) -> str:
    ranks = sum(each.slots for each in hosts)
    return (
        f"note: starting {ranks} rank{'s' * (ranks != 1)} instead of -np {known.num_proc}: "
        f"--host-discovery-script found no more slots ({', '.join(map(str, hosts))}). --min-np "
        f"{option.least(known)} allows this; more ranks start when it finds more slots"
    )


def _variables(known: Namespace, environment: dict[str, str]) -> dict[str, str]:
    """The environment variables that options set. --autotune enables tuning; the environment may allow more."""
    quiet = not known.verbose or config.is_set("log_level", environment)
    values = {} if quiet else {config.variable("log_level"): "info"}
    values |= option.variables(known)
    autotune = config.variable("autotune")
    if environment.get(autotune, "").lower() == "lossy" and values.get(autotune) != "0":
        values.pop(autotune, None)
    return values


def _check_stores(settings: config.Config) -> None:
    """Tries those that ranks will write to: each of them would say so at length."""
    for field in ("timeline", "autotune_log"):
        address = address_of(getattr(settings, field) or "")
        if address is not None:
            from tfdist.storage import reading, store

            try:
                store.Store(reading.split(address)[0]).check()
            except StoreError as error:
                raise ConfigError(f"{config.variable(field)}={address}: {error}") from None


def _check_timeline(known: Namespace, settings: config.Config) -> None:
    if known.timeline_mark_cycles and not settings.timeline:
        raise ConfigError("--timeline-mark-cycles needs a timeline; add --timeline-filename FILE")


def _check_autotune(known: Namespace, settings: config.Config, least: int | None) -> None:
    if known.autotune_log_file is not None and settings.autotune == "0":
        raise ConfigError("--autotune-log-file needs autotuning; add --autotune")
    if least is not None and settings.autotune != "0":
        raise ConfigError(
            "--autotune needs the same ranks from start to finish, but an elastic job may lose some. Tune a job "
            "without --elastic and use the settings it finds, or set TFDIST_AUTOTUNE=0"
        )


def _backup(given: str, here: bool) -> str:
    """The path of the folder, which is created if ranks run on this machine, or its address."""
    address = address_of(given)
    if address is not None:
        try:
            backup.open_backup(address).check()
        except StoreError as error:
            raise ConfigError(f"--backup-dir {address}: {error}") from None
        return address
    folder = local_path(given, "--backup-dir").absolute()
    try:
        reason = _why_no_backup(folder, here) if given else "not a folder"
    except OSError as error:
        reason = f"cannot be written: {error}. Use a folder of your own, on a disk that all hosts share"
    if reason:
        raise ConfigError(f"--backup-dir {given}: {reason}")
    return str(folder)


def _why_no_backup(folder: Path, here: bool) -> str:
    if folder.exists() and not folder.is_dir():
        return "not a folder"
    if folder.exists() and not commit_file.is_private(folder, 0o022):
        return "commits can run code, so only you may have write access: chmod go-w, or use a folder of your own"
    if here:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    return ""


def _hosts(known: Namespace, force: Force | None) -> tuple[host.Host, ...]:
    """The hosts used at the start, with the slots used on each."""
    offered = assembly.offered(known, force) if agent_option.is_given(known) else _offered(known)
    slots = sum(item.slots for item in offered)
    fewest = option.least(known)
    wanted = (
        known.num_proc if fewest is None or not known.host_discovery_script else min(known.num_proc, max(slots, fewest))
    )
    if known.allocation is not None and wanted > slots:
        raise ConfigError(
            f"-np {wanted} exceeds the {slots} slots of {known.allocation}. Request more tasks from "
            f"{known.allocation.manager}, omit -np to use all slots, or name hosts with -H host:slots"
        )
    return host.used(offered, wanted)


def _discovered(known: Namespace) -> tuple[host.Host, ...]:
    script = known.host_discovery_script
    named = f"--host-discovery-script {script}"
    try:
        found = wait_for_hosts(
            lambda: find_hosts(script, known.slots_per_host or 1),
            option.elastic_timeout(known),
            lambda text: _say(f"{named}: {text}"),
        )
        for each in found:
            host.is_local(each.name)
    except (DiscoveryError, ConfigError) as error:
        raise ConfigError(f"{named}: {error}") from None
    return found


def _say(text: str, colour: str = screen.WARNING) -> None:
    """Prints a message before the console exists."""
    print(screen.labelled(f"tfdistrun: {text}", colour), file=sys.stderr)


def _offered(known: Namespace) -> tuple[host.Host, ...]:
    if known.hosts:
        return host.parse_list(known.hosts)
    if known.host_discovery_script:
        return _discovered(known)
    if known.hostfile:
        return host.read_file(known.hostfile)
    if known.allocation is not None:
        hosts: tuple[host.Host, ...] = known.allocation.hosts
        return hosts
    # Without a list of hosts there is no slot limit: this machine runs as many ranks as -np asks for.
    return (host.Host("localhost", known.num_proc),)
