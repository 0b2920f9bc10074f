"""The options of tfdistrun: names, help texts, checks, and the split between options and the user's command."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist import __version__
from tfdist.config import COMPRESSIONS
from tfdist.errors import ConfigError
from tfdist.launch.host import capacity
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.core import Cores
from tfdist.launch.option import agent_option, default_file, horovod_option, option_file, rank_count
from tfdist.system.terminal import command_line
from tfdist.system.terminal.command_line import Parser, whole

START_TIMEOUT_S = 30.0
ELASTIC_TIMEOUT_S = 600.0
STALL_WARNING_S = "60"

_USAGE = "tfdistrun -np N [-H host:slots,...] [options] COMMAND [ARGUMENTS...]"

_DESCRIPTION = """\
Runs COMMAND as N ranks of one job, on this machine or on several hosts, and terminates all of them if one fails.

examples:
  tfdistrun -np 2 python train.py                        two ranks on this machine
  tfdistrun -np 2 -m package.train --epochs 3            a module, with the Python of tfdistrun
  tfdistrun -np 8 -H node1:4,node2:4 python train.py     four ranks on each of two hosts, over ssh
  tfdistrun -np 4 --output-filename logs python train.py each rank's output also in logs/rank.N/
  tfdistrun -np auto python train.py                     as many as this machine has GPUs, else cores
  tfdistrun python train.py                              inside a Slurm, LSF, PBS ... job: on all of its slots
  tfdistrun --config-file job.yaml python train.py       options from a file

on hosts without ssh, with a key file on each (tfdist agent --help shows how to make one):
  node1$ tfdistrun --agents 2 --listen node1:4000 --key-file KEY python train.py
  node2$ tfdist agent --launcher node1:4000 --key-file KEY     and the same on node3
or the same command on every node:
  tfdistrun --nodes 2 --rendezvous node1:4000 --key-file KEY -np 8 python train.py
"""

_EPILOG = """\
Ranks on the same host share its cores: OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS are set to
the number of cores per rank (at least 1), unless you have set them yourself.

exit status: 0 if every rank exited with 0; else that of the first rank to fail (128 + number for a signal, 1 if it left
no record); 130 after Ctrl-C, 143 after SIGTERM; 2 for an error in the options, before anything was started. With
--elastic, ranks that were lost while the others continued do not count.
"""

# Options that choose who starts the ranks: names, programs, meanings.
_STARTERS = (
    ("--mpi", "mpirun", "start the ranks with mpirun, even in a Slurm job where srun would work"),
    ("--srun", "srun", "start the ranks with Slurm's srun (default in Slurm jobs, if a trial with two ranks succeeds)"),
    ("--jsrun", "jsrun", "start the ranks with LSF's jsrun"),
    ("--no-mpi", "direct", "start the ranks without MPI, connected by sockets (default if no mpirun is found)"),
    ("--gloo", "direct", "the same as --no-mpi"),
)

# A job uses one of these; one on the command line replaces one in a file.
_EXCLUSIVE = (
    ("--no-stall-check", "--stall-check-warning-time-seconds"),
    ("--hosts", "--hostfile", "--host-discovery-script", "--agents", "--nodes"),
    ("--network-interfaces", "--network-interface"),
    tuple(name for name, _, _ in _STARTERS),
)

_LOG_LEVELS = {"TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"} | {
    "FATAL": "error"
}


_ranks = whole("a number of ranks", 1)
_times = whole("a number of times", 0)
_workers = whole("a number of workers", 1)
_port = whole("a port", 1, 65535)
_mebibytes = whole("a number of MiB", 0)


def _bounds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", text, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN:MAX; expected two numbers of workers, such as 1:4")
    return int(found[1]), int(found[2])


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; expected names separated by commas")
    return names


def parser() -> argparse.ArgumentParser:
    """All options, in the groups of `--help`; the user's command is split off before (see `split`)."""
    made = Parser(prog="tfdistrun", usage=_USAGE, description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("-v", "--version", action="version", version=f"tfdist {__version__}")
    made.add_argument(
        "-cb", "--check-build", action="store_true", help="show what this installation supports and finds, and exit"
    )
    made.add_argument(
        "--verbose",
        action="store_true",
        help="show the mpirun command and all its output, the defaults that were chosen, and the ranks' INFO logs",
    )
    made.add_argument(
        "--config-file",
        metavar="FILE",
        help="YAML file with options by their long names, as `num-proc: 4`; options on the command line win. Default: "
        f"./{default_file.NAME}, if it is there and only you can write it",
    )
    made.add_argument("--no-config", action="store_true", help=f"do not read ./{default_file.NAME}")
    made.add_argument(
        "--print-config",
        action="store_true",
        help=f"print the given options as such a file, and exit: tfdistrun ... --print-config > {default_file.NAME}",
    )
    made.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        help="run `python -m MODULE` with the Python of tfdistrun; all words after it are arguments of the module",
    )
    _add_placement(made.add_argument_group("ranks and hosts"))
    agent_option.add(made.add_argument_group("hosts without ssh"))
    lost = made.add_argument_group("when a rank is lost")
    _add_elastic(lost)
    _add_discovery(lost)
    _add_data(made.add_argument_group("data service"))
    _add_output(made.add_argument_group("output"))
    _add_training(made.add_argument_group("training (each sets the variable named)"))
    _add_transport(made.add_argument_group("MPI, sockets and network"))
    horovod_option.add(made)
    return made


def _add_placement(group: Any) -> None:
    group.add_argument(
        "-np",
        "-n",
        "--num-proc",
        type=rank_count.number_or_auto,
        metavar="N",
        help="number of ranks (default: all slots of -H, --hostfile or a cluster job, else one per GPU); `auto`: the "
        "same, and on machines without GPUs one per physical core, if each has "
        f"{rank_count.RANK_BYTES // 10**9} GB of free memory",
    )
    group.add_argument(
        "-H",
        "--hosts",
        metavar="LIST",
        help="host:slots,host:slots (default: the hosts of the Slurm, LSF, PBS, SageMaker or Kubeflow job this runs "
        "in, else this machine)",
    )
    group.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="file with one host per line: `name slots=2` or `name:2`"
    )
    group.add_argument("-p", "--ssh-port", type=_port, metavar="PORT", help="ssh port of the other hosts")
    group.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    group.add_argument(
        "--start-timeout",
        type=command_line.amount("seconds"),
        metavar="SECONDS",
        help=f"end the job if not all ranks have started within this time (default: {START_TIMEOUT_S:g}); before that, "
        f"wait as long for all agents (default: {agent_option.AGENTS_TIMEOUT_S:g})",
    )
    group.add_argument(
        "--host-timeout",
        metavar="SECONDS",
        help="end the job if a host has not answered for this long: it is off, frozen or disconnected "
        "(TFDIST_HOST_TIMEOUT; default: 30)",
    )


def _add_elastic(group: Any) -> None:
    group.add_argument(
        "--elastic",
        action="store_true",
        help="fault tolerance: if ranks or hosts are lost, the other ranks continue in place (TFDIST_ELASTIC in the "
        "ranks), without MPI. New ranks join, and those of hosts that go leave, at a commit. Where that cannot be (too "
        "few are left), all ranks are restarted, from the newest commit in the memory of a host",
    )
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        type=_ranks,
        metavar="N",
        help="--elastic with at least N ranks: if fewer are left, all ranks are restarted (default: 1)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        type=_ranks,
        metavar="N",
        help="run at most N ranks, also later (default: -np; with --host-discovery-script all slots)",
    )
    group.add_argument(
        "--reset-limit",
        type=_times,
        metavar="N",
        help="restart all ranks at most N times, then end the job with the failure (default: no limit, as long as they "
        "commit something in between)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        type=command_line.amount("seconds"),
        nargs=2,
        metavar=("MIN", "MAX"),
        help="use a lost host again after MIN seconds, doubled after each further loss, up to MAX (default: never)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=command_line.amount("seconds"),
        metavar="SECONDS",
        help="with --host-discovery-script or --blacklist-cooldown-range: end the job if the hosts have had no slots "
        "for --min-np ranks for this long (default: 600)",
    )

    group.add_argument(
        "--backup-dir",
        metavar="DIR",
        help="if an elastic job is interrupted or fails, save its newest commit there; the same command then continues "
        "from it. Use one folder per training, on a shared or persistent disk, or an address such as s3://bucket/run "
        "(default: nothing is saved)",
    )


def _add_discovery(group: Any) -> None:
    group.add_argument(
        "--host-discovery-script",
        metavar="SCRIPT",
        help="a command that prints the available hosts, one per line, as name:slots; it runs every second. Ranks on "
        "new hosts join at a commit, and those on hosts that are gone leave at one",
    )
    group.add_argument(
        "--slots-per-host",
        type=_ranks,
        metavar="N",
        help="slots of a host that --host-discovery-script prints without a number (default: 1); with --nodes, the "
        "slots of each node (default: -np divided by the number of nodes, else one per core)",
    )


def _add_data(group: Any) -> None:
    group.add_argument(
        "--data-workers",
        type=_workers,
        default=0,
        metavar="N",
        help="run N preprocessing workers next to the ranks, all on this machine; tfdist.data_service.distribute uses "
        "them (TFDIST_DATA_SERVICE)",
    )
    group.add_argument(
        "--autoscale",
        type=_bounds,
        metavar="MIN:MAX",
        help="scale the number of data workers (not of ranks) between MIN and MAX while the job runs, by how long the "
        "ranks wait for data; starts with --data-workers",
    )


def _add_output(group: Any) -> None:
    group.add_argument(
        "--output-filename",
        metavar="DIR",
        help="also write each rank's output to DIR/rank.N/stdout and stderr; DIR may be an address such as "
        "s3://bucket/logs",
    )
    group.add_argument(
        "--upload-seconds",
        type=command_line.amount("seconds"),
        metavar="S",
        help="TFDIST_UPLOAD_SECONDS: how often output, timelines and CSV logs are put into an object store, default 60",
    )
    group.add_argument(
        "-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", help="start each line with the time"
    )


def _add_training(group: Any) -> None:
    group.add_argument(
        "--fusion-threshold-mb", type=_mebibytes, metavar="MIB", help="TFDIST_FUSION_THRESHOLD, but in MiB"
    )
    group.add_argument(
        "--compression", choices=COMPRESSIONS, metavar="NAME", help=f"TFDIST_COMPRESSION: {', '.join(COMPRESSIONS)}"
    )
    group.add_argument(
        "--autotune",
        action="store_true",
        default=None,
        help="search for the fastest settings while DataParallel trains (TFDIST_AUTOTUNE=1)",
    )
    group.add_argument(
        "--autotune-log-file",
        metavar="FILE",
        help="with --autotune: write one row per sample to FILE, as CSV (TFDIST_AUTOTUNE_LOG)",
    )
    group.add_argument("--stall-check-warning-time-seconds", metavar="S", help="TFDIST_STALL_CHECK_WARNING_TIME")
    group.add_argument("--stall-check-shutdown-time-seconds", metavar="S", help="TFDIST_STALL_CHECK_SHUTDOWN_TIME")
    group.add_argument(
        "--no-stall-check",
        action="store_true",
        default=None,
        help="TFDIST_STALL_CHECK_WARNING_TIME=0: no warnings about stragglers; the shutdown time still applies",
    )
    group.add_argument(
        "--hierarchical-allreduce",
        action="store_true",
        default=None,
        help="TFDIST_HIERARCHICAL_ALLREDUCE=mpi: GPUs reduce within a host, then between hosts with MPI",
    )
    group.add_argument("--timeline-filename", metavar="FILE", help="TFDIST_TIMELINE: FILE.json writes FILE.RANK.json")
    group.add_argument("--timeline-mark-cycles", action="store_true", default=None, help="TFDIST_TIMELINE_MARK_CYCLES")
    group.add_argument("--log-level", type=str.upper, choices=_LOG_LEVELS, help="TFDIST_LOG_LEVEL")


def _add_transport(group: Any) -> None:
    starter = group.add_mutually_exclusive_group()
    for name, value, meaning in _STARTERS:
        starter.add_argument(name, dest="starter", action="store_const", const=value, help=meaning)
    group.add_argument(
        "--network-interfaces", type=_names, default=(), metavar="LIST", help="interfaces to use, such as eth0,eth1"
    )
    group.add_argument(
        "--tcp",
        action="store_true",
        help="use only TCP between hosts, also for NCCL, if a faster network does not work",
    )
    group.add_argument(
        "--export",
        type=_names,
        action="append",
        default=[],
        metavar="NAME,...",
        help="variables of this environment that ranks on other hosts get too, besides PATH and those of Python, "
        "tfdist, TensorFlow, Keras, NCCL, CUDA and OpenMP; may be repeated",
    )
    group.add_argument(
        "--mpi-args",
        type=_words,
        default=(),
        metavar="WORDS",
        help="additional arguments for the program that starts the ranks",
    )
    group.add_argument(
        "--binding-args",
        type=_words,
        metavar="WORDS",
        help="mapping and binding arguments for the program that starts the ranks, instead of the defaults",
    )


def split(argv: Sequence[str], options: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Splits `argv` into options (each value joined to its option by `=`) and the user's command.

    argparse alone would mistake an option of the command for one of ours, or a misspelt option of ours for the command.
    """
    known = options._option_string_actions
    words = list(argv)
    ours: list[str] = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == "-m":
            return ours, _python_module([value, *words] if equals else words)
        if name not in known:
            raise ConfigError(_unknown(name, known))
        if known[name].nargs == 0 or equals:
            ours.append(word)
        elif isinstance(values := known[name].nargs, int) and len(words) >= values:
            ours += [name, *words[:values]]
            del words[:values]
        elif words:
            ours.append(f"{name}={words.pop(0)}")
        else:
            raise ConfigError(f"{name} expects a value")
    return ours, words


def _python_module(words: Sequence[str]) -> list[str]:
    if not words or not words[0] or words[0].startswith("-"):
        raise ConfigError("-m expects a module, as in: tfdistrun -np 2 -m package.train")
    if os.sep in words[0] or words[0].endswith(".py"):
        module = words[0].removesuffix(".py").strip(os.sep).replace(os.sep, ".")
        raise ConfigError(
            f"-m received the file {words[0]}; expected a module, such as {module}. Without -m: python FILE"
        )
    return [sys.executable, "-m", *words]


def _unknown(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else "all options: tfdistrun --help"
    return f"{name}: no such option; {advice}"


def parse(
    argv: Sequence[str],
    find: Callable[[str | None], Allocation | None] = lambda _: None,
    nearby: Callable[[], tuple[str, str] | None] = lambda: None,
) -> tuple[argparse.Namespace, list[str]]:
    """The options and the user's command. Raises ConfigError.

    Args:
        argv: The arguments of `tfdistrun`. With --check-build, all others are ignored.
        find: Returns the `allocation` to run on, for a starter, if no option names hosts.
        nearby: Returns the name and text of a file with options, if no option names one.

    Returns:
        Nothing is checked or added for --print-config, which becomes the text to print.
    """
    options = parser()
    ours, command = split(argv, options)
    known = options.parse_args(ours)
    if known.check_build:
        return known, command
    words = [*_of_file(known, options, nearby), *ours]
    known = options.parse_args(words)
    if known.print_config:
        known.print_config = option_file.write(words, options._option_string_actions)
        return known, command
    empty = [each.option_strings[-1] for each in options._actions if vars(known).get(each.dest) == ""]
    if empty:  # as from a variable of a shell that is not set; it would count as not given
        raise ConfigError(f"{empty[0]} received an empty value. Give one, or omit the option")
    agent_option.check(known)
    horovod_option.complete(known)
    if known.hosts and known.hostfile:
        raise ConfigError("-H and --hostfile cannot be combined; give only one")
    try:
        _complete(known, find)
    except ConfigError as error:
        if known.num_proc is not None or not {"-np", "-n", "--num-proc"} & set(command):
            raise
        raise ConfigError(f"{error}. The one after {command[0]} is passed to it: write -np N before it") from None
    if known.no_stall_check and known.stall_check_warning_time_seconds is not None:
        raise ConfigError("--no-stall-check and --stall-check-warning-time-seconds cannot be combined; give only one")
    _check_autoscale(known)
    _check_elastic(known)
    return known, command


def _complete(known: argparse.Namespace, find: Callable[[str | None], Allocation | None]) -> None:
    """Adds what follows from other options: the allocation, the number of ranks, how long to wait."""
    known.listener = None
    known.agents_timeout = known.start_timeout or agent_option.AGENTS_TIMEOUT_S
    known.start_timeout = known.start_timeout or START_TIMEOUT_S
    named = known.hosts or known.hostfile or known.host_discovery_script or agent_option.is_given(known)
    known.allocation = None if named else find(known.starter)
    rank_count.complete(known, lambda: capacity.read(os.environ))


def _of_file(
    given: argparse.Namespace, options: argparse.ArgumentParser, nearby: Callable[[], tuple[str, str] | None]
) -> list[str]:
    """The arguments in --config-file, else in a file nearby. Options `given` replace all that they exclude."""
    if given.config_file is not None:
        where = f"--config-file {given.config_file}"
        try:
            text = Path(given.config_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} cannot be read: {error}") from None
    elif given.no_config or (found := nearby()) is None:
        return []
    else:
        where, text = found
    actions = options._option_string_actions
    read = option_file.read(text, where, actions)
    for names in _EXCLUSIVE:
        if any(getattr(given, actions[name].dest) for name in names):
            read = {name: words for name, words in read.items() if name not in names}
    words = [word for of_one in read.values() for word in of_one]
    try:
        options.parse_args(words)
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error).partition(command_line.USAGE_MARK)[0]}") from None
    return words


def _check_autoscale(known: argparse.Namespace) -> None:
    if known.autoscale is None:
        return
    smallest, largest = known.autoscale
    if not known.data_workers:
        raise ConfigError(
            "--autoscale MIN:MAX needs data workers, but there are none; add --data-workers N, the number to start with"
        )
    if not smallest <= known.data_workers <= largest:
        raise ConfigError(
            f"--data-workers {known.data_workers} is not within --autoscale {smallest}:{largest}; the job starts with "
            "that number, so choose one within the range"
        )


def _check_elastic(known: argparse.Namespace) -> None:
    of_elastic = {
        "--reset-limit": known.reset_limit,
        "--blacklist-cooldown-range": known.blacklist_cooldown_range,
        "--elastic-timeout": known.elastic_timeout,
        "--max-np": known.max_np,
        "--backup-dir": known.backup_dir,
        "--host-discovery-script": known.host_discovery_script,
    }
    given = [name for name, value in of_elastic.items() if value is not None]
    if given and least(known) is None:
        raise ConfigError(f"{given[0]} is for elastic jobs; add --elastic")
    _check_discovery(known)
    if known.num_proc is None:  # as many as the agents have slots
        return
    if known.max_np is not None and known.max_np < known.num_proc:
        raise ConfigError(
            f"--max-np {known.max_np} is less than -np {known.num_proc}, the number of ranks to start with"
        )
    if known.blacklist_cooldown_range and known.blacklist_cooldown_range[0] > known.blacklist_cooldown_range[1]:
        first, most = known.blacklist_cooldown_range
        raise ConfigError(f"--blacklist-cooldown-range {first:g} {most:g}: MIN is greater than MAX")
    if known.min_np is not None and known.min_np > known.num_proc:
        raise ConfigError(
            f"--min-np {known.min_np} is more than -np {known.num_proc}; it is the fewest ranks that may continue: "
            f"expected 1 to {known.num_proc}"
        )


def _check_discovery(known: argparse.Namespace) -> None:
    if known.host_discovery_script is None:
        if known.slots_per_host is not None and known.nodes is None:
            raise ConfigError(
                "--slots-per-host needs --host-discovery-script or --nodes; for -H, give slots as host:slots"
            )
        return
    if known.hosts or known.hostfile:
        raise ConfigError("--host-discovery-script cannot be combined with -H or --hostfile: it provides the hosts")
    if known.data_workers:
        raise ConfigError(
            "--data-workers serves only ranks on this machine, but --host-discovery-script may find other hosts. Start "
            "a separate data service (tfdist data-service --help) and set TFDIST_DATA_SERVICE=HOST:PORT"
        )


def least(known: argparse.Namespace) -> int | None:
    """The fewest ranks that may continue when others fail; None if a failure ends the job."""
    smallest: int | None = known.min_np
    return 1 if known.elastic and smallest is None else smallest


def elastic_timeout(known: argparse.Namespace) -> float:
    """How many seconds to wait for hosts."""
    return ELASTIC_TIMEOUT_S if known.elastic_timeout is None else float(known.elastic_timeout)


def variables(known: argparse.Namespace) -> dict[str, str]:
    """The configuration variables that options stand for."""
    threshold, level = known.fusion_threshold_mb, known.log_level
    warning = "0" if known.no_stall_check else known.stall_check_warning_time_seconds
    if known.no_stall_check is False and warning is None:
        warning = STALL_WARNING_S
    values = {
        **horovod_option.variables(known),
        "TFDIST_FUSION_THRESHOLD": None if threshold is None else str(threshold << 20),
        "TFDIST_COMPRESSION": known.compression,
        "TFDIST_AUTOTUNE": _on_or_off(known.autotune),
        "TFDIST_AUTOTUNE_LOG": known.autotune_log_file,
        "TFDIST_STALL_CHECK_WARNING_TIME": warning,
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME": known.stall_check_shutdown_time_seconds,
        "TFDIST_HOST_TIMEOUT": known.host_timeout,
        "TFDIST_HIERARCHICAL_ALLREDUCE": _on_or_off(known.hierarchical_allreduce, "mpi", "off"),
        "TFDIST_TIMELINE": known.timeline_filename,
        "TFDIST_UPLOAD_SECONDS": None if known.upload_seconds is None else str(known.upload_seconds),
        "TFDIST_TIMELINE_MARK_CYCLES": _on_or_off(known.timeline_mark_cycles),
        "TFDIST_LOG_LEVEL": None if level is None else _LOG_LEVELS[level],
    }
    return {name: value for name, value in values.items() if value is not None}


def _on_or_off(given: bool | None, on: str = "1", off: str = "0") -> str | None:
    """The value of a variable; None if neither the option nor the one that undoes it was given."""
    return None if given is None else on if given else off


def crowding(ranks: int, cores: Cores) -> str | None:
    """A warning if there are more ranks than cores."""
    if ranks <= cores.count:
        return None
    return f"note: {ranks} ranks share {cores.count} core{'s' * (cores.count != 1)}, so they compete for CPU time"
