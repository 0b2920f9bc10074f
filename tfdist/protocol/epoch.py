"""The ranks of a job without MPI, and where each of them listens, as the launcher announces them. Connects nobody."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.system.network.endpoint import Address, parse, text


@dataclass(frozen=True)
class Epoch:
    """One list of ranks. After a change of the ranks comes another, with other connections.

    Attributes:
        job: The job's name.
        number: The first one is 1.
        rank: The rank of the process that this is for.
        key: What the ranks prove to each other that they have.
        addresses: Where each rank listens, by rank.
        hosts: Each rank's host, by rank: an index into `names`.
        names: The names of the hosts, which need not differ.
        processes: The launcher's number of each rank's process, by rank; never used again for another process.
    """

    job: str
    number: int
    rank: int
    key: bytes = field(repr=False)
    addresses: tuple[Address, ...]
    hosts: tuple[int, ...]
    names: tuple[str, ...]
    processes: tuple[int, ...]

    @classmethod
    def announced(cls, fields: Mapping[str, Any], job: str, process: int, key: bytes) -> Epoch:
        """What the launcher's message `epoch` says to one of its processes. Raises ValueError."""
        members = [text.split(" ") for text in fields["members"]]
        processes = tuple(int(number) for number, _, _ in members)
        return cls(
            job=job,
            number=fields["number"],
            rank=processes.index(process),
            key=key,
            addresses=tuple(parse(address) for _, _, address in members),
            hosts=tuple(int(host) for _, host, _ in members),
            names=tuple(fields["hosts"]),
            processes=processes,
        )

    def line(self) -> bytes:
        """As one line of text, for a pipe."""
        fields = dataclasses.asdict(self) | {"key": self.key.hex(), "addresses": list(map(text, self.addresses))}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Epoch:
        """Reads what `line` wrote. Raises ValueError."""
        fields: dict[str, Any] = json.loads(line)
        return cls(
            job=fields["job"],
            number=fields["number"],
            rank=fields["rank"],
            key=bytes.fromhex(fields["key"]),
            addresses=tuple(map(parse, fields["addresses"])),
            hosts=tuple(fields["hosts"]),
            names=tuple(fields["names"]),
            processes=tuple(fields["processes"]),
        )

    def among(self, ranks: Sequence[int]) -> Epoch:
        """The same for some of the ranks, counted in this order; all if there is none in the list."""
        chosen = list(ranks) or list(range(len(self.addresses)))
        return dataclasses.replace(
            self,
            processes=tuple(self.processes[rank] for rank in chosen),
            rank=chosen.index(self.rank),
            addresses=tuple(self.addresses[rank] for rank in chosen),
            hosts=tuple(self.hosts[rank] for rank in chosen),
        )
