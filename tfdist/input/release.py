"""Iterators are destroyed beside training. Changes no data."""

from __future__ import annotations

import threading
from typing import Any


def in_background(held: list[Any]) -> None:
    """Empties a list of iterators that nothing else refers to, in a thread.

    tf.data's threads may be asleep and miss that their iterator is destroyed: then this takes up to half as long as the
    iterator has lived, at most a minute, during which the other ranks would wait for this one's next step.
    """
    threading.Thread(target=held.clear, name="tfdist-release", daemon=True).start()
