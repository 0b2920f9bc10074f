"""What this process does when a rank is lost: continue with the others."""

from __future__ import annotations

import logging

from tfdist import config, errors
from tfdist.input import part
from tfdist.world import runtime

_logger = logging.getLogger("tfdist")


def go_on(loss: errors.PeerLostError | errors.StallError) -> None:
    """Continues with the ranks that are left after a loss or a stall, renumbered. Each of them calls it.

    Raises:
        PeerLostError: If a lost rank ends the job.
    """
    if not config.is_elastic():
        raise errors.PeerLostError(
            f"{loss} A lost rank ends the job, because it was not started with tfdistrun --elastic."
        ) from loss
    size, rank = runtime.size(), runtime.rank()
    runtime.renew()
    part.deal_all()
    _logger.warning(
        "continuing with %d of %d ranks; this one was rank %d and is now rank %d. %s",
        *(runtime.size(), size, rank, runtime.rank(), loss),
    )
