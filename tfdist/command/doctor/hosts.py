"""Findings about several hosts: whether they have the same software and paths, their clocks, and the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.command.doctor.finding import BROKEN, NOTE, Finding

GROUP = "hosts"
_CLOCK_S = 1.0
_FOR_PACKAGES = "install the same version on every host, best from one image or one shared disk"
_REMEDIES = {
    "tfdist": _FOR_PACKAGES,
    "Python": "use the same Python on every host, at the same path",
    "TensorFlow": _FOR_PACKAGES,
    "Keras": _FOR_PACKAGES,
    "MPI": _FOR_PACKAGES,
    "path of Python": "put the environment at the same path on every host, such as on a shared disk",
    "working folder": "start in a folder that every host has at the same path, such as on a shared disk",
}


@dataclass(frozen=True)
class Told:
    """What a host has told: its facts, and by how many seconds its clock is ahead of that of the launcher."""

    facts: Mapping[str, str]
    ahead_s: float


def findings(told: Mapping[str, Told]) -> list[Finding]:
    """One for each fact and one for the clocks.

    Args:
        told: What each host has told, by name.
    """
    found = []
    for name, remedy in _REMEDIES.items():
        values = {host: each.facts[name] for host, each in told.items()}
        if len(set(values.values())) == 1:
            found.append(Finding(GROUP, name, f"{next(iter(values.values()))} on all {len(values)} hosts"))
        else:
            text = "\n".join(f"{host}: {value}" for host, value in values.items())
            found.append(Finding(GROUP, name, text, BROKEN, remedy))
    return [*found, _clocks(told)]


def silent(report: str, hosts: Sequence[str]) -> Finding:
    """The program did not run on all hosts."""
    check = f"ssh {hosts[-1]} true"
    remedy = f"fix the first error above; each host must be reached without a password, as in: {check}"
    return Finding(GROUP, "start", report, BROKEN, remedy)


def allreduce(report: Any, pair: tuple[str, str]) -> Finding:
    """The speed between two hosts.

    Args:
        report: The result of `child.between`.
        pair: Their names.
    """
    name = "all-reduce"
    if isinstance(report, str):
        remedy = (
            "fix the first error above; the hosts must reach each other on all ports. Choose a network with "
            "--run-args='--network-interfaces NAME', or try TCP alone with --run-args=--tcp"
        )
        return Finding(GROUP, name, report, BROKEN, remedy)
    mib, speed = report["bytes"] / (1 << 20), report["bytes"] / report["seconds"] / 1e9
    took = f"{mib:g} MiB on {report['device']} in {1000 * report['seconds']:.2f} ms: {speed:.2f} GB/s"
    return Finding(GROUP, name, f"between {' and '.join(pair)}, {took} with correct sums")


def _clocks(told: Mapping[str, Told]) -> Finding:
    ahead = {host: each.ahead_s for host, each in told.items()}
    spread_s = max(ahead.values()) - min(ahead.values())
    if spread_s <= _CLOCK_S:
        return Finding(GROUP, "clocks", f"within {_CLOCK_S:g} s")
    text = "\n".join(f"{host}: {value:+.1f} s" for host, value in ahead.items())
    remedy = "let chrony or systemd-timesyncd set the clocks; timelines and logs of the hosts cannot be compared"
    return Finding(GROUP, "clocks", text, NOTE, remedy)
