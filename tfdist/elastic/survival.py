"""What this process does when the ranks change: continue with those that are left, or that come."""

from __future__ import annotations

import logging

from tfdist import config, errors
from tfdist.world import runtime

_logger = logging.getLogger("tfdist")


def join() -> None:
    """This process, which has prepared apart, joins the ranks that train. It waits until they are at a commit.

    Raises:
        PeerLostError: If they do not come to one in time.
    """
    runtime.renew()
    _logger.warning("joined a training in progress as rank %d of %d", runtime.rank(), runtime.size())


def go_on(loss: errors.HorovodInternalError | errors.HostsUpdatedInterrupt) -> None:
    """Continues with the ranks that the launcher announces, renumbered: after a loss or a stall, or for others that
    come. Each of the ranks so far calls it.

    Raises:
        PeerLostError: If a lost rank ends the job.
    """
    if not config.is_elastic():
        raise errors.PeerLostError(
            f"{loss} A lost rank ends the job, because it was not started with tfdistrun --elastic."
        ) from loss
    size, rank = runtime.size(), runtime.rank()
    runtime.renew()
    if runtime.size() > size:  # who was late to the meeting has seen a loss, of those that did not wait
        text = "continuing with %d ranks instead of %d; this one was rank %d and is now rank %d"
        _logger.warning(text, runtime.size(), size, rank, runtime.rank())
        return
    _logger.warning(
        "continuing with %d of %d ranks; this one was rank %d and is now rank %d. %s",
        *(runtime.size(), size, rank, runtime.rank(), loss),
    )
