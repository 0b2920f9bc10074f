"""`tfdist.metrics` in one process: before init, in a world of one, as text."""

import re

from tfdist.observe import meter

BEFORE = """
import pytest, tfdist
with pytest.raises(tfdist.errors.NotInitializedError, match=r"tfdist\\.init\\(\\)"):
    tfdist.metrics()
"""
ALONE = """
import tfdist
tfdist.init()
tfdist.allreduce([1.0, 2.0])
tfdist.grouped_allreduce([[1.0], [2.0, 3.0]])
tfdist.barrier()
measured = tfdist.metrics()
assert {name: measured[name] for name in ("rank", "size", "local_rank")} == {"rank": 0, "size": 1, "local_rank": 0}
assert list(measured["collectives"]) == [
    "allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "barrier", "join"
]
cost = measured["collectives"]["allreduce"]
assert cost["calls"] == 2 and cost["bytes"] == 20, cost
parts = sum(cost[name] for name in cost if name.endswith("_seconds"))
assert 0 < parts <= cost["seconds"] <= tfdist.runtime.communication_seconds(), cost
assert measured["collectives"]["barrier"]["calls"] == 1
tfdist.shutdown()
"""


def test_in_a_fresh_process(run_script):
    run_script(BEFORE)
    run_script(ALONE)


def test_text():
    cost = dict.fromkeys(meter.SECONDS, 0.5) | {"calls": 2, "bytes": 8}
    text = meter.render({"rank": 1, "size": 3, "local_rank": 1, "collectives": {"allreduce": cost}})
    assert '# TYPE tfdist_ranks gauge\ntfdist_ranks{rank="1"} 3\n' in text
    assert 'tfdist_collective_calls_total{rank="1",operation="allreduce"} 2\n' in text
    assert 'tfdist_collective_bytes_total{rank="1",operation="allreduce"} 8\n' in text
    assert 'tfdist_collective_wait_seconds_total{rank="1",operation="allreduce"} 0.5\n' in text
    names = re.findall(r"# TYPE (\S+) counter", text)
    assert len(names) == len(set(names)) == 8
    assert len(re.findall(r"# HELP \S+ [A-Z].*\.\n", text)) == 9
