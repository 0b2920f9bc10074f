"""What this process does when a rank is lost: finds out, and goes on with the others."""

from __future__ import annotations

import logging

import tensorflow as tf

from tfdist import _native, config, errors, runtime
from tfdist.elastic import part

_logger = logging.getLogger("tfdist")


def trouble_behind(error: BaseException) -> errors.TfdistError | None:
    """The loss or the silence of a rank that made an operation fail with `error`; None where that has another cause.

    In a compiled step the error of a collective arrives in many classes, so the engine is asked.
    """
    if not isinstance(error, (errors.TfdistError, tf.errors.OpError)) or not runtime.is_initialized():
        return None
    try:
        _native.call("tfdist_check")
    except (errors.PeerLostError, errors.StallError) as trouble:
        return trouble
    except errors.TfdistError:
        return None
    return None


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
        "tfdist: %d of %d ranks go on; this one was rank %d and is rank %d now. %s",
        *(runtime.size(), size, rank, runtime.rank(), loss),
    )
