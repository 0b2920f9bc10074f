"""Measures tfdist's layer on the data service beside TensorFlow's own service, in one run, and prints it.

    python benchmarks/data_service.py [--json FILE]

Both read the same dataset from the same worker, a process of its own, over the network stack; they take turns.
TensorFlow's beside itself, measured in the same way, tells how far to trust a ratio. What the two dataset ops cost
without a service is told too, as it does not drown in the noise of the transfer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.trainer import watch

LOCAL_ELEMENTS = 20_000
FLOATS_OF_100_KB = 25_600
# Few, so that a turn is not answered from what was read ahead during the other's turn.
OUTSTANDING = 8
WORKER = """
import sys
from tfdist import data_service
with data_service.Worker(data_service.WorkerConfig(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Result:
    """Medians over the rounds. `ratio` is our throughput by TensorFlow's, `overhead_us` what an element costs more."""

    case: str
    elements: int
    raw_per_second: float
    ours_per_second: float
    ratio: float
    overhead_us: float


def compare(case: str, elements: int, rounds: int, make: Sequence[Callable[[], Any]]) -> Result:
    """Times so many elements at a time from each of two endless datasets, raw and ours, in turn.

    A batch keeps Python's loop out of it. The start and end of a pass stay out too: TensorFlow looks for new tasks once
    a second, with us and without.
    """
    options = tf.data.Options()
    # Else TensorFlow makes the next batches of one, in parallel or by a `prefetch`, while the other is timed.
    options.experimental_optimization.parallel_batch = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    readers = [iter(one().batch(elements).with_options(options)) for one in make]
    for reader in readers:
        next(reader)
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            next(readers[which])
            times[which].append(time.perf_counter() - start)
    raw, ours = (statistics.median(one) for one in times)
    return Result(case, elements, elements / raw, elements / ours, raw / ours, (ours - raw) / elements * 1e6)


def measure_service(address: str, size: str, dataset: Any, elements: int, rounds: int) -> list[Result]:
    def raw() -> Any:
        service = tf.data.experimental.service.distribute(
            "distributed_epoch", f"grpc://{address}", max_outstanding_requests=OUTSTANDING
        )
        return dataset.apply(service)

    def ours() -> Any:
        return data_service.distribute(dataset, address, max_outstanding_requests=OUTSTANDING)

    return [
        compare(f"{size} elements", elements, rounds, (raw, ours)),
        compare(f"{size}, TensorFlow twice", elements, rounds, (raw, raw)),
    ]


def measure_ops(elements: int, rounds: int) -> list[Result]:
    """The ops alone, on a dataset that costs next to nothing."""
    numbers = tf.data.Dataset.range(1 << 62)
    pairs = watch.add_ids(numbers, lambda number: number)

    def watched(dataset: Any, by_id: bool) -> Any:
        return watch.watch(dataset, watch.Watch(watch.new_name("bench"), "", by_id=by_id))

    return [
        compare("served op alone", elements, rounds, (lambda: numbers, lambda: watch.serve(numbers))),
        compare("watched op alone", elements, rounds, (lambda: numbers, lambda: watched(numbers, False))),
        compare("watched op with ids", elements, rounds, (lambda: pairs, lambda: watched(pairs, True))),
    ]


def measure(tiny: int, large: int, local: int, rounds: int) -> list[Result]:
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        command = [sys.executable, "-c", WORKER, dispatcher.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            try:
                assert worker.stdout is not None
                worker.stdout.readline()
                numbers = tf.data.Dataset.range(1 << 62)
                floats = tf.random.uniform([FLOATS_OF_100_KB])
                arrays = numbers.map(lambda number: floats + tf.cast(number, tf.float32))
                results = [
                    *measure_service(dispatcher.address, "8 B", numbers, tiny, rounds),
                    *measure_service(dispatcher.address, "100 KB", arrays, large, rounds),
                ]
            finally:
                worker.kill()
    return results + measure_ops(local, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", type=int, default=150, help="elements of 8 bytes in a turn")
    parser.add_argument("--large", type=int, default=100, help="elements of 100 KB in a turn")
    parser.add_argument("--local", type=int, default=LOCAL_ELEMENTS, help="elements of a turn without a service")
    parser.add_argument("--rounds", type=int, default=301, help="turns of each")
    parser.add_argument("--json", type=Path, help="also writes the figures into this file")
    options = parser.parse_args(arguments)
    results = measure(options.tiny, options.large, options.local, options.rounds)
    print(f"{'case':<26}{'TensorFlow/s':>15}{'tfdist/s':>15}{'ratio':>8}{'us more an element':>20}")
    for result in results:
        rates = f"{result.raw_per_second:>15,.0f}{result.ours_per_second:>15,.0f}"
        print(f"{result.case:<26}{rates}{result.ratio:>8.3f}{result.overhead_us:>20.3f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
