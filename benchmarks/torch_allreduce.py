"""Times the all-reduce of tfdist.torch beside that of torch.distributed with gloo, in turn.

    python benchmarks/torch_allreduce.py [--size 100MB] [--starts N] [--rounds N] [--ranks N] [--json FILE]

Needs the extra `torch`. In each start of a job of N ranks (2) on this machine, tfdist and gloo each sum the same
float32 tensor in place, tfdist through shared memory, gloo through sockets; their order changes from round to
round. Each rank has one thread. A round begins with a barrier of its library and lasts until the slowest rank has its
sum. Prints the median and the minimum of each start and of all, and the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.command.bench.measure import size, table

DEADLINE_S = 600
LIBRARIES = ("tfdist", "gloo")
JOB = """
import json, os, time, torch, torch.distributed as dist, tfdist.torch as hvd
rounds, elements = int(os.environ["ROUNDS"]), int(os.environ["ELEMENTS"])
torch.set_num_threads(1)
hvd.init()
address = f"tcp://127.0.0.1:{os.environ['GLOO_PORT']}"
dist.init_process_group("gloo", init_method=address, rank=hvd.rank(), world_size=hvd.size())
tensor = torch.empty(elements)
calls = {
    "tfdist": (hvd.barrier, lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="tensor")),
    "gloo": (dist.barrier, lambda: dist.all_reduce(tensor)),
}
seconds = {name: [] for name in calls}
for number in range(rounds + 2):  # two to warm up
    for name in sorted(calls, reverse=number % 2 == 0):
        barrier, reduce = calls[name]
        tensor.fill_(hvd.rank() + 1)
        barrier()
        start = time.perf_counter()
        reduce()
        own = torch.tensor(time.perf_counter() - start)
        assert tensor[0] == tensor[-1] == sum(range(1, hvd.size() + 1)), name
        slowest = float(hvd.allreduce(own, op=hvd.Max, name="slowest"))
        if number >= 2:
            seconds[name].append(slowest)
if hvd.rank() == 0:
    print(json.dumps(seconds))
dist.destroy_process_group()
hvd.shutdown()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_job(ranks: int, rounds: int, elements: int) -> dict[str, list[float]]:
    """The seconds of each round, by library."""
    numbers = {"ROUNDS": rounds, "ELEMENTS": elements, "GLOO_PORT": free_port(), "OMP_NUM_THREADS": 1}
    environment = os.environ | {name: str(number) for name, number in numbers.items()}
    with tempfile.TemporaryDirectory() as folder:  # away from a source tree, so that the installed package is used
        words = [sys.executable, "-m", "tfdist.launch", "--no-mpi", "-np", str(ranks), sys.executable, "-c", JOB]
        done = subprocess.run(
            words, env=environment, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    if done.returncode != 0 or not lines:
        sys.exit(f"torch_allreduce: a job ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    seconds: dict[str, list[float]] = json.loads(lines[-1])
    return seconds


def row_of(label: str, seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Median and minimum of each, in ms, and the ratios of gloo's to tfdist's: above 1 tfdist is faster."""
    medians, minima = ([kind(seconds[name]) for name in LIBRARIES] for kind in (statistics.median, min))
    ratios = [f"{theirs / ours:.2f}" for ours, theirs in (medians, minima)]
    return [label, *(f"{1000 * value:.1f}" for value in (*medians, *minima)), *ratios]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=size.parse, default="100MB", help="bytes of the tensor (default: %(default)s)")
    options.add_argument("--starts", type=int, default=3, help="jobs (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=10, help="measured rounds of a job (default: %(default)s)")
    options.add_argument("--ranks", type=int, default=2, help="(default: %(default)s)")
    options.add_argument("--json", type=Path, help="also write the seconds of every round here")
    arguments = options.parse_args()
    jobs = [start_job(arguments.ranks, arguments.rounds, arguments.size // 4) for _ in range(arguments.starts)]
    together = {name: [second for job in jobs for second in job[name]] for name in LIBRARIES}
    rows = [row_of(f"start {number}", job) for number, job in enumerate(jobs, 1)]
    heads = [f"{name}, {kind}, ms" for kind in ("median", "minimum") for name in LIBRARIES]
    ratios = ["gloo / tfdist, medians", "gloo / tfdist, minima"]
    print(table.markdown(["", *heads, *ratios], [*rows, row_of("all", together)]))
    if arguments.json:
        arguments.json.write_text(json.dumps(jobs))


if __name__ == "__main__":
    main()
