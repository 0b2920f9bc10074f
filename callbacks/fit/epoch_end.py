"""Where all ranks meet at the end of a training epoch. The collective's name explains the wait to a rank that still
trains.

Not a callback.
"""

from __future__ import annotations

import tensorflow as tf

import tfdist
from tfdist.world.mismatch import END_OF_EPOCH


class EpochEnd:
    """Counts the batches of an epoch.

    Attributes:
        in_lockstep: Whether each step runs a collective, so that ranks that meet here have taken equally many steps.
    """

    def __init__(self) -> None:
        self.in_lockstep = False
        self._epoch = 0
        self._batches = tf.Variable(0, trainable=False, dtype=tf.int64)

    def begin(self, epoch: int) -> None:
        """An epoch begins, or the rest of one.

        Args:
            epoch: Its number, starting at 0.
        """
        self._epoch = epoch
        self._batches.assign(0)

    def count(self) -> None:
        """Counts a batch; called in the step, once the data is there."""
        self._batches.assign_add(1)

    def batches(self) -> int:
        """How many were counted in this epoch, or the rest of one."""
        return int(self._batches.numpy())

    def meet(self) -> None:
        """Waits for the other ranks.

        Raises:
            MismatchError: On all ranks, if one of them still trains or is in another epoch.
        """
        if tfdist.size() > 1:
            name = f"{END_OF_EPOCH} {self._epoch + 1}"
            batches = self.batches()
            after = f" after {batches} batch{'es' * (batches != 1)}" if self.in_lockstep else ""
            tfdist.barrier(name=name + after)
