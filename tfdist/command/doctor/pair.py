"""The program of the doctor's two ranks: sums a tensor over both, checks the result, and times it.

Rank 0 prints JSON. Inputs differ by rank and their sums are exact, so any error shows.
"""

from __future__ import annotations

import json
import sys
import time

_ELEMENTS = 1 << 18
_ROUNDS = 20


def main() -> int:
    """Runs on each rank.

    Returns:
        0, or 1 if the sum is wrong.
    """
    # Imported here because the doctor itself must not import them.
    import tfdist
    from tfdist.native import adapter

    tensorflow = adapter.import_tensorflow()
    tfdist.init()
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else _ELEMENTS
    ranks, numbers = tfdist.size(), tensorflow.range(elements, dtype="float32")
    mine = numbers + tfdist.rank()
    expected = ranks * numbers + ranks * (ranks - 1) / 2
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        total = tfdist.allreduce(mine, op=tfdist.Sum).numpy()
        seconds.append(time.perf_counter() - started)
        wrong = int((total != expected.numpy()).sum())
        if wrong:
            print(f"rank {tfdist.rank()} got {wrong} wrong sums of {elements}", file=sys.stderr)
            return 1
    if tfdist.rank() == 0:
        device = mine.device.rsplit("device:", 1)[-1]
        print(json.dumps({"ranks": ranks, "bytes": 4 * elements, "seconds": min(seconds), "device": device}))
    tfdist.shutdown()
    return 0
