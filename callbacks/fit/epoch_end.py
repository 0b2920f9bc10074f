"""Where all ranks meet at the end of a training epoch, under a name that says so to one that trains on.

Not a callback.
"""

from __future__ import annotations

import tensorflow as tf

import tfdist
from tfdist.ops.graph.failure import END_OF_EPOCH


class EpochEnd:
    """Counts the batches of an epoch.

    Attributes:
        in_lockstep: Whether each step has a collective, so that ranks that meet here have had equally many.
    """

    def __init__(self) -> None:
        self.in_lockstep = False
        self._epoch = 0
        self._batches = tf.Variable(0, trainable=False, dtype=tf.int64)

    def begin(self, epoch: int) -> None:
        """An epoch begins, or what is left of one.

        Args:
            epoch: Its number, from 0 on.
        """
        self._epoch = epoch
        self._batches.assign(0)

    def count(self) -> None:
        """A batch is trained on; for use in the step, once it has its data."""
        self._batches.assign_add(1)

    def meet(self) -> None:
        """Waits for the other ranks.

        Raises:
            MismatchError: If one of them trains on, or is in another epoch; says so on all.
        """
        if tfdist.size() > 1:
            name = f"{END_OF_EPOCH} {self._epoch + 1}"
            batches = int(self._batches.numpy())
            after = f" after {batches} batch{'es' * (batches != 1)}" if self.in_lockstep else ""
            tfdist.barrier(name=name + after)
