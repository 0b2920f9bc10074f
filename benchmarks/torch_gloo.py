"""Times tfdist.torch beside torch.distributed with gloo, in turn: an all-reduce, or the training of ResNet50.

    python benchmarks/torch_gloo.py allreduce [--size 100MB] [--starts N] [--rounds N] [--ranks N] [--json FILE]
    python benchmarks/torch_gloo.py train [--image-size 96] [--batch-size 8] [--starts N] [--rounds N] ...

Needs the extra `torch`. In each start of a job of N ranks (2) on this machine all take turns, in an order that changes
from round to round: tfdist through shared memory, gloo through sockets. Each rank has one thread. A round begins with a
barrier and lasts until the slowest rank has ended.

allreduce  sums the same float32 tensor in place.
train      takes a step of SGD with momentum: `hvd.DistributedOptimizer`; `DistributedDataParallel`, whose buffers stay
           apart; and alone: the same step without communication, which no job can beat.

Prints the median and the minimum of each start and of all, and the ratios.
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

DEADLINE_S = 1800
START = """
import json, os, time, torch, torch.distributed as dist, tfdist.torch as hvd
torch.set_num_threads(1)
hvd.init()
address = f"tcp://127.0.0.1:{os.environ['GLOO_PORT']}"
dist.init_process_group("gloo", init_method=address, rank=hvd.rank(), world_size=hvd.size())
"""
ALLREDUCE = """
tensor = torch.empty(int(os.environ["ELEMENTS"]))
def reducing(reduce):
    tensor.fill_(hvd.rank() + 1)
    yield
    reduce()
    yield
    assert tensor[0] == tensor[-1] == sum(range(1, hvd.size() + 1))
calls = {
    "tfdist": lambda: reducing(lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="tensor")),
    "gloo": lambda: reducing(lambda: dist.all_reduce(tensor)),
}
"""
TRAIN = """
from torch import nn
class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        def normalised(inputs, outputs, kernel, stride=1):
            layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(outputs))
        self.inner = nn.Sequential(
            *(normalised(inputs, width, 1), nn.ReLU(), normalised(width, width, 3, stride), nn.ReLU()),
            normalised(width, 4 * width, 1),
        )
        same = stride == 1 and inputs == 4 * width
        self.outer = nn.Identity() if same else normalised(inputs, 4 * width, 1, stride)
    def forward(self, x):
        return torch.relu(self.inner(x) + self.outer(x))
def resnet50():
    torch.manual_seed(1)
    layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Block(inputs, width, 1 if number else stride))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
side, count = int(os.environ["IMAGE_SIZE"]), int(os.environ["BATCH_SIZE"])
images, labels = torch.randn(count, 3, side, side), torch.randint(1000, (count,))
def training(model, optimizer):
    def step():
        optimizer.zero_grad()
        yield
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        yield
    return step
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
ours, theirs, alone = resnet50(), resnet50(), resnet50()
wrapped = nn.parallel.DistributedDataParallel(theirs, broadcast_buffers=False)
calls = {
    "tfdist": training(ours, hvd.DistributedOptimizer(sgd(ours), named_parameters=ours.named_parameters())),
    "gloo": training(wrapped, sgd(theirs)),
    "alone": training(alone, sgd(alone)),
}
"""
ROUNDS = """
seconds, names = {name: [] for name in calls}, list(calls)
rounds, warm = int(os.environ["ROUNDS"]), 2
for number in range(rounds + warm):
    for place in range(len(names)):
        name = names[(place + number) % len(names)]
        call = calls[name]()
        next(call)
        hvd.barrier()
        start = time.perf_counter()
        next(call)
        own = torch.tensor(time.perf_counter() - start)
        next(call, None)
        slowest = float(hvd.allreduce(own, op=hvd.Max, name="slowest"))
        if number >= warm:
            seconds[name].append(slowest)
"""
EQUAL = """
flat = [torch.cat([part.detach().flatten() for part in model.parameters()]) for model in (ours, theirs)]
assert torch.allclose(*flat, rtol=1e-3, atol=1e-5), "tfdist and gloo have trained other weights"
"""
END = """
if hvd.rank() == 0:
    print(json.dumps(seconds))
dist.destroy_process_group()
hvd.shutdown()
"""
JOBS = {"allreduce": START + ALLREDUCE + ROUNDS + END, "train": START + TRAIN + ROUNDS + EQUAL + END}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_job(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The seconds of each round, by library."""
    numbers = {
        "ROUNDS": arguments.rounds,
        "ELEMENTS": arguments.size // 4,
        "IMAGE_SIZE": arguments.image_size,
        "BATCH_SIZE": arguments.batch_size,
        "GLOO_PORT": free_port(),
        "OMP_NUM_THREADS": 1,
    }
    environment = os.environ | {name: str(number) for name, number in numbers.items()}
    ranks, program = ("-np", str(arguments.ranks)), (sys.executable, "-c", JOBS[arguments.what])
    with tempfile.TemporaryDirectory() as folder:  # away from a source tree, so that the installed package is used
        words = [sys.executable, "-m", "tfdist.launch", "--no-mpi", *ranks, *program]
        done = subprocess.run(
            words, env=environment, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    if done.returncode != 0 or not lines:
        sys.exit(f"torch_gloo: a job ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    seconds: dict[str, list[float]] = json.loads(lines[-1])
    return seconds


def row_of(label: str, seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Median and minimum of each, in ms, and the ratios of the others' to tfdist's: above 1 tfdist is faster."""
    medians, minima = ([kind(values) for values in seconds.values()] for kind in (statistics.median, min))
    ratios = [f"{theirs / values[0]:.2f}" for values in (medians, minima) for theirs in values[1:]]
    return [label, *(f"{1000 * value:.1f}" for value in (*medians, *minima)), *ratios]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=sorted(JOBS))
    options.add_argument("--size", type=size.parse, default="100MB", help="bytes of the tensor (default: %(default)s)")
    options.add_argument("--image-size", type=int, default=96, help="pixels of a side (default: %(default)s)")
    options.add_argument("--batch-size", type=int, default=8, help="images of a rank (default: %(default)s)")
    options.add_argument("--starts", type=int, default=3, help="jobs (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=10, help="measured rounds of a job (default: %(default)s)")
    options.add_argument("--ranks", type=int, default=2, help="(default: %(default)s)")
    options.add_argument("--json", type=Path, help="also write the seconds of every round here")
    arguments = options.parse_args()
    jobs = [start_job(arguments) for _ in range(arguments.starts)]
    names = list(jobs[0])
    together = {name: [second for job in jobs for second in job[name]] for name in names}
    rows = [row_of(f"start {number}", job) for number, job in enumerate(jobs, 1)]
    kinds = ("median", "minimum")
    heads = [f"{name}, {kind}, ms" for kind in kinds for name in names]
    ratios = [f"{name} / tfdist, {kind}" for kind in kinds for name in names[1:]]
    print(table.markdown(["", *heads, *ratios], [*rows, row_of("all", together)]))
    if arguments.json:
        arguments.json.write_text(json.dumps(jobs))


if __name__ == "__main__":
    main()
