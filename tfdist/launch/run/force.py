"""The agents of a job: waits until all of them have come, names their hosts, and hands them to the launcher."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tfdist import __version__
from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.agent.summons import Summons
from tfdist.launch.host import host, probe
from tfdist.launch.host.host import Host
from tfdist.launch.host.probe import UnreachableError
from tfdist.launch.wire.muster import Muster, Recruit, dismiss
from tfdist.launch.wire.tls import Identity
from tfdist.system.network import endpoint

_QUIET_S = 2.0
_INTERRUPTED = 130
_MOST_SLOTS = 999_999


@dataclass(frozen=True)
class Force:
    """The agents of a job, by the name of their host, in the order of the ranks; and the port that they came to.

    Those that have come while the job runs leave the port to it.
    """

    listener: socket.socket
    identity: Identity
    recruits: dict[str, Recruit]
    summons: Summons | None = field(default=None)
    owns_port: bool = True

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts that they offer."""
        return tuple(Host(name, recruit.slots) for name, recruit in self.recruits.items())

    @property
    def addresses(self) -> dict[str, str]:
        """Where they came from, by host."""
        return {name: recruit.address for name, recruit in self.recruits.items()}

    @property
    def machines(self) -> dict[str, str]:
        """What tells the machine of each host: its own name, unless its agent has said more."""
        return {name: recruit.machine or name for name, recruit in self.recruits.items()}

    @property
    def are_tasks(self) -> bool:
        """Whether they are tasks of another engine, whose environment ranks have: such an agent tells its machine."""
        return any(recruit.machine for recruit in self.recruits.values())

    def dismiss(self, status: int, reason: str) -> None:
        """Ends all of them, because there will be no job."""
        for recruit in self.recruits.values():
            dismiss(recruit, status, reason)
            recruit.conversation.link.close()
        if self.owns_port:
            self.listener.close()
        if self.summons is not None:
            self.summons.close()

    def said(self) -> list[str]:
        """What the programs that started them have printed."""
        return [] if self.summons is None else self.summons.said()


def gather(
    listener: socket.socket,
    count: int,
    key: bytes,
    timeout_s: float,
    say: Callable[[str], None],
    reserved: Sequence[str] = (),
) -> Force:
    """Waits for agents that were started by somebody else.

    Args:
        listener: Where they come.
        count: How many.
        key: What they must have.
        timeout_s: How long to wait for all of them.
        say: Called with lines for the user.
        reserved: Names that no host of theirs may have.

    Raises:
        ConfigError: If one of them has another version of tfdist.
        PeerLostError: If not all come in time.
    """
    where = endpoint.text(listener.getsockname()[:2])

    def missing(there: list[Recruit]) -> str:
        names = f" ({', '.join(sorted(each.host for each in there))})" if there else ""
        return "" if len(there) >= count else f"{len(there)} of {count}{names}"

    def late(there: list[Recruit]) -> PeerLostError:
        return PeerLostError(
            f"waited {timeout_s:g} s for agents at {where}: {missing(there)} came. Start the others with "
            f"`tfdist agent --launcher {where} --key-file FILE`, or with the same command if it has --nodes, check "
            "that no firewall blocks the port, or wait longer with --start-timeout"
        )

    identity = Identity()
    muster = Muster(listener, identity, key, lambda recruit: judged(recruit, say), say)
    there = _wait(muster, missing, late, timeout_s, lambda left: say(f"waiting for agents at {where}: {left}"))
    return Force(listener, identity, _named(there[:count], reserved))


def summon(
    listener: socket.socket, summons: Summons, hosts: Sequence[str], timeout_s: float, say: Callable[[str], None]
) -> Force:
    """Has agents started on other hosts, and waits for them.

    Args:
        listener: Where they come.
        summons: Starts them.
        hosts: The names by which they call themselves.
        timeout_s: How long to wait for all of them.
        say: Called with lines for the user.

    Raises:
        ConfigError: If one of them has another version of tfdist.
        PeerLostError: If ssh or srun cannot be run.
        UnreachableError: If one cannot be started, or not all come in time.
    """
    wanted = set(hosts)

    def judge(recruit: Recruit) -> str:
        unknown = recruit.host not in wanted or recruit.host in [each.host for each in muster.recruits]
        return "it was not asked for" if unknown else judged(recruit, say)

    def missing(there: list[Recruit]) -> str:
        left = wanted - {each.host for each in there}
        if failed := summons.failed(left):
            raise UnreachableError(_unreachable(failed, summons), failed)
        return ", ".join(sorted(left))

    def late(there: list[Recruit]) -> PeerLostError:
        left = sorted(wanted - {each.host for each in there})
        failed = probe.unreachable(left, summons.ssh.words()) if summons.by_ssh else {}
        if failed:
            return UnreachableError(_unreachable(failed, summons), failed)
        return UnreachableError(
            f"the agents of {', '.join(left)} did not come within {timeout_s:g} s. Check that no firewall blocks the "
            f"port {listener.getsockname()[1]} of this machine; a slow host needs a longer --start-timeout",
            left,
        )

    identity = Identity()
    muster = Muster(listener, identity, summons.key, judge, say)
    try:
        summons.start(endpoint.text(listener.getsockname()[:2]))
        there = _wait(muster, missing, late, timeout_s, lambda left: say(f"waiting for the agents of {left}"))
    except BaseException:
        summons.close()
        raise
    by_name = {each.host: each for each in there}
    return Force(listener, identity, {name: by_name[name] for name in hosts}, summons)


def judged(recruit: Recruit, say: Callable[[str], None]) -> str:
    """Why an agent cannot take part; empty if it can. Raises ConfigError if no agent there ever could."""
    if recruit.version != __version__:
        raise ConfigError(
            f"the agent on {recruit.host[:64]!r} ({recruit.address}) has tfdist {recruit.version[:32]}, the launcher "
            f"has tfdist {__version__}. Install the same version on all hosts"
        )
    if not host.is_name(recruit.host) or not 1 <= recruit.slots <= _MOST_SLOTS:
        return f"{recruit.host[:64]!r} with {recruit.slots} slots is not a host"
    here = ".".join(map(str, sys.version_info[:2]))
    if recruit.python != here:
        say(f"note: the agent on {recruit.host} runs Python {recruit.python[:16]}, the launcher Python {here}")
    return ""


def _wait(
    muster: Muster,
    missing: Callable[[list[Recruit]], str],
    late: Callable[[list[Recruit]], PeerLostError],
    timeout_s: float,
    report: Callable[[str], None],
) -> list[Recruit]:
    """Returns the agents when none is missing. Otherwise those that wait are told why there will be no job."""
    began, shown = time.monotonic(), ""
    status, reason = 1, ""
    try:
        while left := missing(muster.recruits):
            waited_s = time.monotonic() - began
            if waited_s >= timeout_s:
                raise late(muster.recruits)
            if waited_s >= _QUIET_S and left != shown:
                report(left)
                shown = left
            muster.step()
    except KeyboardInterrupt:
        status, reason = _INTERRUPTED, "the launcher was interrupted"
        raise
    except (ConfigError, PeerLostError) as error:
        status, reason = 2 if isinstance(error, ConfigError) else 1, str(error)
        raise
    finally:
        found = muster.recruits
        muster.close(reason, status)
    return found


def _named(recruits: Iterable[Recruit], reserved: Sequence[str]) -> dict[str, Recruit]:
    """By a name of their own: several agents may call their host the same."""
    found: dict[str, Recruit] = {}
    for recruit in sorted(recruits, key=lambda each: (_by_number(each.host), _by_number(each.address))):
        name, number = recruit.host, 1
        while name in found or name in reserved:
            number += 1
            name = f"{recruit.host}-{number}"
        found[name] = recruit
    return found


def _by_number(name: str) -> list[str | int]:
    """Sorts node-10 after node-2."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]


def _unreachable(failed: dict[str, str], summons: Summons) -> str:
    names = ", ".join(sorted(failed))
    first = min(failed)
    advice = (
        f"Check that `ssh {first} true` works without a password, and that Python and tfdist have the same paths there"
        if summons.by_ssh
        else "Check the state of these nodes with sinfo"
    )
    return f"no agent could be started on {names}: {failed[first]}. {advice}"
