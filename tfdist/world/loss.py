"""Whether a rank was lost or hangs: errors of a collective arrive in many classes, so the engine is asked."""

from __future__ import annotations

from tfdist import errors
from tfdist.native import library
from tfdist.world import runtime


def of_engine() -> errors.TfdistError | None:
    """The loss or stall of a rank that has ended the engine of this process; None if it runs, or there is none."""
    if not runtime.is_initialized():
        return None
    try:
        library.call("tfdist_check")
    except (errors.PeerLostError, errors.StallError) as trouble:
        return trouble
    except errors.TfdistError:
        return None
    return None
