"""What this process does when a rank is lost: goes on with the others."""

from __future__ import annotations

import logging

from tfdist import config, errors
from tfdist.input import part
from tfdist.world import runtime

_logger = logging.getLogger("tfdist")


def go_on(loss: errors.PeerLostError) -> None:
    """Goes on with the ranks that live, counted anew. Each of them calls it.

    Raises:
        PeerLostError: Where a lost rank ends the job.
    """
    if not config.is_elastic():
        raise errors.PeerLostError(
            f"{loss} A lost rank ends the job, as it was not started with tfdistrun --elastic."
        ) from loss
    size, rank = runtime.size(), runtime.rank()
    runtime.shrink()
    part.deal_all()
    _logger.warning(
        "%d of %d ranks go on; this one was rank %d and is rank %d now. %s",
        *(runtime.size(), size, rank, runtime.rank(), loss),
    )
