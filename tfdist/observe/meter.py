"""The cost of collectives in this process, as numbers and as text for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.native import library
from tfdist.system.network import prometheus
from tfdist.system.network.prometheus import Family

_PREFIX = "tfdist_"
# Per operation, in addition to "calls" and "bytes".
SECONDS = {
    "seconds": "Time inside calls",
    "wait_seconds": "Time inside calls until all ranks had joined",
    "exchange_seconds": "Time inside calls waiting for data from other ranks, once all had joined",
    "pack_seconds": "Time inside calls spent copying, scaling and casting inputs",
    "reduce_seconds": "Time inside calls spent adding up",
    "unpack_seconds": "Time inside calls spent copying, scaling and casting results",
}
_NANOSECONDS = {"seconds": "total_ns"}


def metrics() -> dict[str, Any]:
    """Returns what the collectives of this process have cost since `tfdist.init()`. It does not communicate.

    You need it to see where a step loses time: a rank with low `wait_seconds` is the straggler the others wait for.
    Collectives of process sets are included. Counting is always on and costs about a microsecond per call.

    Returns:
        A dict of `rank`, `size` and `local_rank`, which are ints, and `collectives`: for each collective, by name as in
            "allreduce" (a grouped one counts there too), a dict of

            - `calls`: int; a grouped collective is one call.
            - `bytes`: int, bytes of this rank's tensors, before compression.
            - `seconds`: float, time inside calls. On a GPU, calls return before their work is done.
            - `wait_seconds`: of these, until all ranks had joined the call.
            - `exchange_seconds`: of these, waiting for data from other ranks once all had joined.
            - `pack_seconds`, `reduce_seconds`, `unpack_seconds`: of these, CPU work on tensors in host memory. Packing
              in place between hosts is not counted.

    Raises:
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    before = tfdist.metrics()["collectives"]["allreduce"]["wait_seconds"]
    model.fit(dataset, epochs=1, callbacks=[tfdist.callbacks.DataParallel()])
    print(tfdist.metrics()["collectives"]["allreduce"]["wait_seconds"] - before)
    ```
    """
    place = {name: library.ask(name) for name in ("rank", "size", "local_rank")}
    costs = {operation: _in_seconds(cost) for operation, cost in library.read_metrics().items()}
    return {**place, "collectives": costs}


def _in_seconds(cost: Mapping[str, int]) -> dict[str, int | float]:
    times = {name: cost[_NANOSECONDS.get(name, name.replace("_seconds", "_ns"))] * 1e-9 for name in SECONDS}
    return {"calls": cost["calls"], "bytes": cost["bytes"], **times}


def render(measured: Mapping[str, Any]) -> str:
    """The text of `/metrics`.

    Args:
        measured: As `metrics` returns.
    """
    rank = {"rank": str(measured["rank"])}
    families = [Family(_PREFIX, "ranks", "Number of ranks of the job.", ((rank, measured["size"]),))]
    told = {"calls": "Collectives called", "bytes": "Bytes of the rank's tensors, before compression", **SECONDS}
    for name, meaning in told.items():
        samples = tuple(
            (rank | {"operation": operation}, cost[name]) for operation, cost in measured["collectives"].items()
        )
        families.append(Family(_PREFIX, f"collective_{name}_total", f"{meaning}.", samples))
    return prometheus.render(families)
