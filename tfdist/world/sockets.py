"""Connects this rank with the others by sockets, for a job without MPI, and starts the engine."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence

from tfdist import config, errors
from tfdist.native import library
from tfdist.protocol import member, mesh
from tfdist.protocol.epoch import Epoch
from tfdist.system.network import endpoint
from tfdist.system.rank import ancestry, job_place
from tfdist.world.rendezvous import Found, find
from tfdist.world.roster import Roster
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_LOOPBACK = "127.0.0.1"
# The connections of all ranks; the engine numbers those of process sets from 1.
_ALL = 0


class Connector:
    """Makes the connections of this rank, at the start and for process sets. Lives as long as the engine.

    Args:
        epoch: The ranks, and where they listened at the start.
        address: Where this one listens.
        settings: For the deadlines.
        lost: Why they cannot be made any more; empty while they can.
    """

    def __init__(self, epoch: Epoch, address: str, settings: config.Config, lost: Callable[[], str]) -> None:
        self._epoch, self._address, self._settings, self._lost = epoch, address, settings, lost
        self._listeners: dict[int, socket.socket] = {}

    def listen(self, channel: int) -> int:
        """Starts to listen for the connections of a channel; returns the port."""
        listener = self._listeners[channel] = mesh.listen(self._address)
        return int(listener.getsockname()[1])

    def connect(self, channel: int, ports: dict[int, int]) -> dict[int, int]:
        """Returns the descriptors of the connections with these ranks, whose listeners have these ports."""
        at = {rank: (self._epoch.addresses[rank][0], port) for rank, port in ports.items()}
        return self.meet(self._listeners.pop(channel), channel, at)

    def meet(self, listener: socket.socket, channel: int, peers: dict[int, endpoint.Address]) -> dict[int, int]:
        """Returns the descriptors of the connections with these ranks; closes the listener.

        Raises:
            PeerLostError: If some cannot be reached in time.
        """
        epoch, members = self._epoch, sorted({*peers, self._epoch.rank})
        context = "|".join((epoch.job, str(epoch.number), str(epoch.processes), str(channel), *map(str, members)))
        found = mesh.Mesh(
            listener,
            epoch.rank,
            peers,
            epoch.key,
            context.encode(),
            self._settings.stall_shutdown_seconds,
            self._settings.host_timeout_seconds,
        ).connect(_logger.warning, self._lost)
        return {rank: connection.detach() for rank, connection in found.items()}


def connect(roster: Roster, ranks: Sequence[int], engine: bytes, settings: config.Config) -> None:
    """Starts the engine as one rank of the job.

    Args:
        roster: The reports of the launcher.
        ranks: The members by their ranks in the job, in the order of their numbers here; empty for all.
        engine: The settings of the engine.
        settings: The settings.

    Raises:
        ConfigError: If `ranks` is not a list of distinct ranks with this one.
        PeerLostError: If other ranks cannot be reached.
    """
    environment = ancestry.own_environment()
    _check(ranks, *(job_place.of_job(environment) or (0, 1)))
    if job_place.by_tfdistrun(environment):
        if session.introduced:
            raise errors.ConfigError(
                "tfdist.init() was called again after tfdist.shutdown(), or after an init that failed, and a job "
                "without MPI can start only once per rank. Call init once, and shutdown only after the last collective."
            )
        session.introduced = True
        found = _introduced(roster, settings.stall_shutdown_seconds)
    else:
        found = find(environment, settings)
    epoch, connector, descriptors = _meet(roster, found, ranks, settings)
    library.init_sockets(*_place_in(epoch), descriptors, connector, engine)
    roster.follow(epoch.processes)


def reconnect(roster: Roster, settings: config.Config) -> None:
    """Continues with the ranks that the launcher announces next, each of which calls this.

    Raises:
        PeerLostError: If it announces none in time.
    """
    deadline = time.monotonic() + settings.stall_shutdown_seconds
    roster.rest()
    while True:
        found = _introduced(roster, max(0.0, deadline - time.monotonic()))
        try:
            epoch, connector, descriptors = _meet(roster, found, (), settings)
            library.meet(*_place_in(epoch), descriptors, connector)
        except errors.PeerLostError as loss:  # of another one meanwhile, which the launcher will leave out
            _logger.info("%s", loss)
            continue
        roster.follow(epoch.processes)
        return


def _place_in(epoch: Epoch) -> tuple[int, tuple[int, ...], list[str]]:
    """The rank of this process, and the host of each rank by number and name."""
    return epoch.rank, epoch.hosts, [epoch.names[host] for host in epoch.hosts]


def _meet(
    roster: Roster, found: Found, ranks: Sequence[int], settings: config.Config
) -> tuple[Epoch, Connector, dict[int, int]]:
    """Connects with the ranks that were found, or those of them that are listed."""
    epoch = found.epoch.among(ranks)

    def lost() -> str:
        gone = roster.gone_of(epoch.processes)
        return f"rank {epoch.processes.index(gone[0])} has ended before it was connected." if gone else ""

    with found.listener as listener:
        connector = Connector(epoch, listener.getsockname()[0], settings, lost)
        peers = {rank: at for rank, at in enumerate(epoch.addresses) if rank != epoch.rank}
        return epoch, connector, connector.meet(listener, _ALL, peers)


def _introduced(roster: Roster, timeout_s: float) -> Found:
    """The ranks as the launcher announces them, after this one has said where it listens."""
    listener = mesh.listen(member.listen_address() or _LOOPBACK)
    after = roster.number
    try:
        if not member.listens(after, listener.getsockname()[:2]):
            raise errors.ConfigError(
                "this rank cannot report to tfdistrun where it listens: a program between them closes unknown file "
                "descriptors. Start the script directly with tfdistrun."
            )
        return Found(roster.await_epoch(after, timeout_s, all_must_come=after == 0 and session.apart < 0), listener)
    except BaseException:
        listener.close()
        raise


def _check(ranks: Sequence[int], own: int, size: int) -> None:
    fitting = len(set(ranks)) == len(ranks) and all(0 <= rank < size for rank in ranks)
    if ranks and not (fitting and own in ranks):
        raise errors.ConfigError(
            f"init received the ranks {list(ranks)} on rank {own} of {size}; expected distinct ranks of the "
            "job, including this one. Pass every rank the list that it belongs to."
        )
