"""The crew of an agent: what the launcher orders, and the process that becomes the crew."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.launch.supervisor import crew, task
from tfdist.launch.supervisor.crew import Crew
from tfdist.launch.wire import ticket
from tfdist.launch.wire.link import Link
from tfdist.launch.wire.record import RefusedFrameError
from tfdist.launch.wire.ticket import Ticket
from tfdist.system.network.endpoint import Address
from tfdist.system.process import adopt_orphans, die_with_parent
from tfdist.system.rank import ancestry, job_place

# Of the job that this agent may itself run in.
_FOREIGN = (*ticket.VARIABLES, *job_place.OWN)


@dataclass(frozen=True)
class Orders:
    """What an agent is ordered to start."""

    ticket: Ticket
    crew: Crew
    variables: Mapping[str, str] = field(repr=False)
    folder: str

    @classmethod
    def read(cls, fields: Mapping[str, Any], launcher: Address, fingerprint: bytes) -> Orders:
        """Reads the message `crew`; the launcher is where the agent reached it. Raises RefusedFrameError."""
        pairs = [pair.partition("=")[::2] for pair in fields["variables"]]
        first, count, size = fields["first"], fields["count"], fields["size"]
        if not (first >= 0 and count > 0 and first + count <= size):
            raise RefusedFrameError(f"ranks {first} to {first + count - 1} of {size}")
        try:
            key = bytes.fromhex(fields["key"])
        except ValueError:
            raise RefusedFrameError("a key that is not hexadecimal") from None
        try:
            places, shown = tuple(map(int, fields["places"])), bytes.fromhex(fields["fingerprint"])
        except ValueError:
            raise RefusedFrameError("places or a fingerprint that are no numbers") from None
        if places and len(places) != count:
            raise RefusedFrameError(f"{len(places)} places for {count} ranks")
        made = Ticket(fields["job"], key, launcher[0], fields["port"] or launcher[1], fingerprint=shown or fingerprint)
        return cls(made, Crew(first, count, size, places), dict(pairs), fields["folder"])

    @property
    def ranks(self) -> str:
        """As in "rank 3 of 4" or "ranks 2 to 3 of 4"."""
        first, last = self.crew.first, self.crew.first + self.crew.count - 1
        named = f"rank {first}" if first == last else f"ranks {first} to {last}"
        return f"{named} of {self.crew.size}"

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """The environment of the crew: this process's own, and over it what came from the launcher."""
        kept = ancestry.without_rank(own) if ancestry.origin(own) else own
        kept = {name: value for name, value in kept.items() if name not in _FOREIGN}
        return {**kept, **self.variables, **self.ticket.variables()}


def start(orders: Orders, launcher: Link) -> int:
    """Forks the crew, which ends if this process does; returns its process id.

    Args:
        orders: What to start.
        launcher: The agent's connection. The crew closes it, so that it ends with the agent.
    """
    agent = os.getpid()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        os.setpgid(0, 0)  # the terminal's Ctrl-C is for the agent
        die_with_parent(signal.SIGTERM, agent)
        launcher.close()
        if os.path.isdir(orders.folder):
            os.chdir(orders.folder)
        environment = orders.environment(os.environ)
        os.environ.clear()
        os.environ.update(environment)
        adopt_orphans()
        status = crew.run(orders.crew, task.supervise, environment)
    except BaseException:
        traceback.print_exc()  # the launcher sees the status only
        raise
    finally:
        sys.stderr.flush()
        os._exit(status)
