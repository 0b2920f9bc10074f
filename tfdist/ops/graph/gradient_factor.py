"""What makes the gradient of a collective that of Horovod 0.28, which differs by the number of ranks."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from tfdist import config
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_said: set[str] = set()
# The modules with Horovod's names: who has imported one may have tuned a script for Horovod.
_NAMES: Final = ("tfdist.tensorflow", "tfdist.keras", "tfdist.torch")


def of_average(collective: str, process_set: ProcessSet, size: Any = None) -> Any:
    """For allgather and broadcast, of whose gradients Horovod takes the average: a factor for the sum over the ranks.

    The sum is the gradient of the sum of what all ranks differentiate. If a script uses Horovod's names and nobody has
    chosen, rank 0 says once for each collective how the gradients differ.

    Args:
        collective: Its name.
        process_set: The ranks that take part.
        size: How many they are when the gradient is computed, as a number or a float64 scalar; None: as many as now.
    """
    return _factor(collective, process_set.size(), 1 / (process_set.size() if size is None else size), "1/{} of")


def of_repeated_sum(collective: str, process_set: ProcessSet, size: Any = None) -> Any:
    """For reducescatter, whose gradient Horovod multiplies by the number of ranks; else as `of_average`."""
    return _factor(collective, process_set.size(), process_set.size() if size is None else size, "{} times")


def _factor(collective: str, size: int, factor: Any, horovods: str) -> Any:
    if session.gradients == config.GRADIENTS[1]:
        return factor
    if size > 1 and not session.gradients and collective not in _said and any(map(sys.modules.get, _NAMES)):
        _said.add(collective)
        if runtime.rank() == 0:
            _logger.warning(
                "the gradient of %s is that of the sum over the %d ranks; Horovod's is %s that. For a script tuned "
                "with Horovod set TFDIST_GRADIENTS=0.28, which gives Horovod's; TFDIST_GRADIENTS=exact keeps these "
                "without this line.",
                collective,
                size,
                horovods.format(size),
            )
    return 1.0
