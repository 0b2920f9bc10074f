"""How many ranks a job has if `-np` gives no number: by the slots of its hosts, the GPUs, or the cores and memory."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.capacity import Capacity
from tfdist.launch.option import agent_option
from tfdist.system.terminal.command_line import whole

AUTO = "auto"
# What a rank needs at least: TensorFlow takes about 0.6 GB, the rest is for the model and its data.
RANK_BYTES = 2 * 10**9

_number = whole("a number of ranks", 1)


def number_or_auto(text: str) -> int | str:
    """The parser of `-np`."""
    if text == AUTO:
        return AUTO
    try:
        return _number(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {AUTO}") from None


def complete(known: argparse.Namespace, read: Callable[[], Capacity]) -> None:
    """Sets the number of ranks if it was not given, and `count_note`, the line that says why; empty if there is none.

    The number stays None where agents bring the hosts.

    Args:
        known: The options, with the allocation.
        read: Reads the capacity of this machine.

    Raises:
        ConfigError: If the number is missing.
    """
    given, known.count_note = known.num_proc, ""
    if isinstance(given, int):
        return
    known.num_proc = None
    if agent_option.is_given(known):
        if given == AUTO and known.nodes is not None and known.slots_per_host is None:
            known.slots_per_host, why = choose(read())
            known.count_note = f"-np {AUTO}: {_ranks(known.slots_per_host)} on this node: {why}"
        return
    if known.host_discovery_script:
        raise ConfigError(
            "-np N is missing: the number of ranks to start with; --host-discovery-script does not give it"
        )
    if (found := _slots(known)) is not None:
        known.num_proc, why = found
        known.count_note = _note(known.num_proc, why) if given == AUTO else ""
        return
    machine = read()
    if given is None and not machine.gpus:
        raise ConfigError(
            "-np N is missing: the number of ranks, as in: tfdistrun -np 2 python train.py. "
            f"-np {AUTO} chooses it by the cores and the memory of this machine"
        )
    known.num_proc, why = choose(machine)
    known.count_note = _note(known.num_proc, why)


def choose(machine: Capacity) -> tuple[int, str]:
    """The number of ranks for this machine, and why."""
    if machine.gpus:
        return machine.gpus, "one per GPU"
    fitting = max(1, machine.free_bytes // RANK_BYTES)
    memory = f"{machine.free_bytes / 10**9:.1f} GB of free memory"
    if fitting < machine.cores:
        return fitting, f"{memory} at {RANK_BYTES / 10**9:g} GB per rank, fewer than the {machine.cores} physical cores"
    return machine.cores, f"one per physical core, and {memory} suffice"


def _slots(known: argparse.Namespace) -> tuple[int, str] | None:
    """The slots of the hosts that are given, and by what; None if there are none."""
    if known.allocation is not None:
        return known.allocation.slots, f"the slots of {known.allocation}"
    if known.hosts:
        hosts, source = host.parse_list(known.hosts), "-H"
    elif known.hostfile:
        hosts, source = host.read_file(known.hostfile), "--hostfile"
    else:
        return None
    return sum(each.slots for each in hosts), f"the slots of {source}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _note(count: int, why: str) -> str:
    line = f"-np {AUTO}: {_ranks(count)}: {why}"
    if count == 1:
        return line
    return (
        f"{line}. The global batch is {count} times the batch in the script, and DataParallel multiplies the learning "
        f"rate by {count}"
    )
