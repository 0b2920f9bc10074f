"""Connects this rank with the others by sockets, for a job without MPI, and starts the engine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

from tfdist import config, errors
from tfdist.native import library
from tfdist.protocol import member, mesh
from tfdist.protocol.epoch import Epoch
from tfdist.protocol.member import Gone, News
from tfdist.system.network import endpoint
from tfdist.system.rank import ancestry, job_place
from tfdist.world.rendezvous import Found, find
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
    """

    def __init__(self, epoch: Epoch, address: str, settings: config.Config) -> None:
        self._epoch, self._address, self._settings = epoch, address, settings
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
        context = "|".join((epoch.job, str(epoch.number), str(epoch.members), str(channel), *map(str, members)))
        found = mesh.Mesh(
            listener,
            epoch.rank,
            peers,
            epoch.key,
            context.encode(),
            self._settings.stall_shutdown_seconds,
            self._settings.host_timeout_seconds,
        ).connect(_logger.warning)
        return {rank: connection.detach() for rank, connection in found.items()}


def connect(news: News, ranks: Sequence[int], engine: bytes, settings: config.Config) -> None:
    """Starts the engine as one rank of the job.

    Args:
        news: The reports of the launcher.
        ranks: The members by their ranks in the job, in the order of their numbers here; empty for all.
        engine: The settings of the engine.
        settings: The settings.

    Raises:
        ConfigError: If `ranks` is not a list of distinct ranks with this one.
        PeerLostError: If other ranks cannot be reached.
    """
    environment = ancestry.own_environment()
    _check(ranks, *(job_place.of_job(environment) or (0, 1)))
    found = _introduced(news, settings) if job_place.by_tfdistrun(environment) else find(environment, settings)
    with found.listener as listener:
        epoch = found.epoch.among(ranks)
        connector = Connector(epoch, listener.getsockname()[0], settings)
        peers = {rank: at for rank, at in enumerate(epoch.addresses) if rank != epoch.rank}
        descriptors = connector.meet(listener, _ALL, peers)
    names = [epoch.names[host] for host in epoch.hosts]
    library.init_sockets(epoch.rank, epoch.hosts, names, descriptors, connector, engine)


def _introduced(news: News, settings: config.Config) -> Found:
    """The ranks as the launcher announces them."""
    if session.introduced:
        raise errors.ConfigError(
            "tfdist.init() was called again after tfdist.shutdown(), or after an init that failed, and a job without "
            "MPI can start only once per rank. Call init once, and shutdown only after the last collective."
        )
    session.introduced = True
    listener = mesh.listen(member.listen_address() or _LOOPBACK)
    try:
        if not member.listens(listener.getsockname()[:2]):
            raise errors.ConfigError(
                "this rank cannot report to tfdistrun where it listens: a program between them closes unknown file "
                "descriptors. Start the script directly with tfdistrun."
            )
        return Found(_await_epoch(news, settings.stall_shutdown_seconds), listener)
    except BaseException:
        listener.close()
        raise


def _await_epoch(news: News, timeout_s: float) -> Epoch:
    report = news.wait(timeout_s)
    if isinstance(report, Epoch):
        return report
    if isinstance(report, Gone):
        raise errors.PeerLostError(
            f"rank {report.rank} has ended before it called tfdist.init(), for which this rank waits. Call it on every "
            "rank."
        )
    if not news.is_open:
        raise errors.PeerLostError("tfdistrun, or the supervisor of this rank, is gone. See the launcher's output.")
    raise errors.PeerLostError(
        f"tfdistrun has not announced the other ranks within {timeout_s:g} s: not all of them have called "
        "tfdist.init(). Call it on every rank, before any work that only one rank does."
    )


def _check(ranks: Sequence[int], own: int, size: int) -> None:
    fitting = len(set(ranks)) == len(ranks) and all(0 <= rank < size for rank in ranks)
    if ranks and not (fitting and own in ranks):
        raise errors.ConfigError(
            f"init received the ranks {list(ranks)} on rank {own} of {size}; expected distinct ranks of the "
            "job, including this one. Pass every rank the list that it belongs to."
        )
