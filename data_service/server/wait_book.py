"""The waiting times that trainers have reported to a dispatcher: which trainer, how much, how long ago. No clock, no
socket.

Reports are not authenticated. Whoever can reach the control port can also reach tf.data's own port and run code there,
so a key would keep nobody out. False reports can only claim that trainers wait, or that they do not: an autoscaled
cluster then grows or shrinks to its bounds, and `advise` gives wrong advice. An attacker can also keep the book full,
so that new trainers are ignored. Neither loses any element.
"""

from __future__ import annotations

import threading

from tfdist.data_service.inspection.wait_report import TrainerWait

# A trainer reports every few seconds; one that has missed some has ended, reads nothing, or cannot reach us.
EXPIRY_S = 20.0
MOST_TRAINERS = 1024


class WaitBook:
    """The newest report of each trainer, until it expires. Thread-safe.

    Args:
        expiry_s: Seconds after which a report no longer counts.
        most: How many trainers are kept at once.
    """

    def __init__(self, expiry_s: float = EXPIRY_S, most: int = MOST_TRAINERS) -> None:
        self._expiry_s, self._most = expiry_s, most
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, TrainerWait]] = {}

    def note(self, wait: TrainerWait, now: float) -> bool:
        """Records a report, with the time by a monotonic clock; False if there is no room for another trainer."""
        with self._lock:
            self._forget(now)
            if wait.trainer not in self._told and len(self._told) >= self._most:
                return False
            self._told[wait.trainer] = (now, wait)
            return True

    def read(self, now: float) -> tuple[TrainerWait, ...]:
        """The reports that have not expired, by trainer."""
        with self._lock:
            self._forget(now)
            return tuple(
                TrainerWait(wait.trainer, wait.share, wait.measured_at, round(now - at, 3))
                for _, (at, wait) in sorted(self._told.items())
            )

    def _forget(self, now: float) -> None:
        self._told = {name: told for name, told in self._told.items() if now - told[0] <= self._expiry_s}
