"""Slurm: the nodes of a job, from its environment variables. Does not run `scontrol`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation

NODES = "SLURM_JOB_NODELIST"
TASKS = "SLURM_TASKS_PER_NODE"
CORES = "SLURM_JOB_CPUS_PER_NODE"
# The most that Slurm supports.
_MOST_NODES = 65536
_NAMES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]+\])+")
_PART = re.compile(r"([^\[\]]+)|\[([^\[\]]+)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_TIMES = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", re.ASCII)


def find(environment: Mapping[str, str]) -> Allocation | None:
    """The nodes with their tasks (or cores, if tasks are not set); None outside a job. Raises ConfigError."""
    nodes = environment.get(NODES, "")
    if not nodes:
        return None
    counted = TASKS if environment.get(TASKS) else CORES
    if not environment.get(counted):
        raise ConfigError(
            f"{NODES}={nodes} is set, but neither {TASKS} nor {CORES}, so the number of ranks per node is unknown; "
            "name the hosts with -H host:slots"
        )
    names, slots = expand(nodes), counts(environment[counted], counted)
    if len(names) != len(slots):
        raise ConfigError(
            f"{NODES}={nodes} names {len(names)} nodes, but {counted}={environment[counted]} describes {len(slots)}; "
            "name the hosts with -H host:slots"
        )
    source = f"{NODES} and {counted}"
    return Allocation("Slurm", host.listed(zip(names, map(str, slots), strict=True), source), source)


def expand(text: str) -> list[str]:
    """The names of a node list: n1, n2 and n3 of `n[1-3]`. Raises ConfigError."""
    names: list[str] = []
    parts = _NAMES.findall(text)
    if ",".join(parts) != text:
        raise ConfigError(f"{NODES}={text}: expected names such as node1,node[2-4,08]")
    for part in parts:
        # One more than allowed is enough to detect too many, and keeps this fast.
        names += itertools.islice(_expand_one(part, text), _MOST_NODES + 1 - len(names))
        if len(names) > _MOST_NODES:
            raise ConfigError(f"{NODES}={text}: more than {_MOST_NODES} nodes")
    return names


def _expand_one(part: str, text: str) -> Iterator[str]:
    choices: list[Iterator[str] | list[str]] = []
    for name, ranges in _PART.findall(part):
        if name:
            choices.append([name])
        else:
            choices.append([number for each in ranges.split(",") for number in _numbers(each, text)])
    return map("".join, itertools.product(*choices))


def _numbers(text: str, nodes: str) -> Iterator[str]:
    found = _RANGE.fullmatch(text)
    first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
    if int(first) > int(last):
        raise ConfigError(f"{NODES}={nodes}: [{text}] is not a range of numbers; expected a range such as [2-4,08]")
    if int(last) - int(first) >= _MOST_NODES:
        raise ConfigError(f"{NODES}={nodes}: more than {_MOST_NODES} nodes")
    return (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def counts(text: str, variable: str) -> list[int]:
    """One number per node: `2(x3),1` gives 2, 2, 2, 1. Raises ConfigError."""
    numbers: list[int] = []
    for part in text.split(","):
        found = _TIMES.fullmatch(part)
        if found is None or int(found[1]) == 0:
            raise ConfigError(f"{variable}={text}: cannot parse {part!r}; expected counts such as 2(x3),1")
        times = int(found[2] or 1)
        if len(numbers) + times > _MOST_NODES:
            raise ConfigError(f"{variable}={text}: more than {_MOST_NODES} nodes")
        numbers += [int(found[1])] * times
    return numbers
