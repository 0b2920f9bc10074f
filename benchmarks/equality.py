"""Measures `tfdist.check_equal` of equal weights beside memcpys of the same bytes, in turn.

    tfdistrun -np 2 python benchmarks/equality.py [--model ResNet50] [--rounds N]

Each rank has one thread. A figure is that of the slowest rank in a round; printed are the median of the rounds, their
least, and the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdist


def slowest_ms(action: Callable[[], object]) -> float:
    """The time of something that all ranks begin together."""
    tfdist.barrier()
    start = time.perf_counter()
    action()
    return 1e3 * max(tfdist.allgather_object(time.perf_counter() - start))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="ResNet50")
    options.add_argument("--rounds", type=int, default=21)
    known = options.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tfdist.init()
    keras.utils.set_random_seed(1)
    weights = getattr(keras.applications, known.model)(weights=None).trainable_weights
    arrays = [np.asarray(weight.value).copy() for weight in weights]
    copies = [np.empty_like(array) for array in arrays]

    def copy() -> None:
        for target, source in zip(copies, arrays, strict=True):
            np.copyto(target, source)

    actions = {"memcpy": copy, "check": lambda: tfdist.check_equal(weights)}
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(1 + known.rounds):  # the first warms up
        for name in sorted(actions, reverse=bool(number % 2)):
            times[name].append(slowest_ms(actions[name]))
    figures = {name: values[1:] for name, values in times.items()}
    if tfdist.rank() == 0:
        megabytes = sum(array.nbytes for array in arrays) / 1e6
        print(f"{known.model}: {len(weights)} weights, {megabytes:.0f} MB, {tfdist.size()} ranks")
        for name, values in figures.items():
            print(f"{name}: median {statistics.median(values):.1f} ms, least {min(values):.1f} ms")
        ratios = [check / memcpy for check, memcpy in zip(figures["check"], figures["memcpy"], strict=True)]
        print(f"check / memcpy: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
