"""The ports of drained workers, for reuse by later ones. Does not check that a port is free.

tf.data's dispatcher never forgets a worker, so always using new ports would let its list grow without bound. But it
gives a returning worker no part of a running pass: only a worker on an unknown port joins at once. So a worker started
mid-pass gets a new port while few are spare, and a used one otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST = 32


class SparePorts:
    """Ports that are no longer in use.

    Args:
        most: At this number, workers started mid-pass reuse a port, and the autoscaler frees no more mid-pass.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._ports: list[int] = []

    def put(self, port: int) -> None:
        """Adds the port of a worker that has left."""
        self._ports.append(port)

    @property
    def full(self) -> bool:
        """Whether the maximum number is reached."""
        return len(self._ports) >= self._most

    def take(self, in_pass: bool) -> Iterator[int]:
        """Ports to try in turn, the oldest first, and finally 0 for a new one; a port that is taken leaves the list.

        Args:
            in_pass: Whether a pass over the data is running.
        """
        while self._ports and (self.full or not in_pass):
            yield self._ports.pop(0)
        yield 0
