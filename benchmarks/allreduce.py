"""Times a grouped allreduce inside a tf.function, beside a memcpy of the same bytes.

Run: tfdistrun -np 2 python benchmarks/allreduce.py [--bytes 4096,1048576,104857600] [--tensors 160]
Rows come in turn, round by round, so that noise of the machine meets all of them alike.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import tfdist

COMPRESSIONS = ("none", "fp16", "bf16")


def make_call(size_bytes, tensors, compression):
    """A compiled function that reduces `tensors` float32 variables of `size_bytes` in all."""
    count = max(1, size_bytes // 4 // tensors)
    variables = [tf.Variable(tf.fill([count], tfdist.rank() + 1.0)) for _ in range(tensors)]

    @tf.function
    def reduce_all():
        values = [variable.value() for variable in variables]
        return tfdist.grouped_allreduce(values, compression=compression, name="benchmark")

    def call():
        result = float(reduce_all()[0][0])
        assert result == (tfdist.size() + 1) / 2, result

    return call


def make_copy(size_bytes):
    source = np.ones(size_bytes // 4, np.float32)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def measure(calls, rounds):
    """Seconds of each call in each round."""
    for call in calls:
        for _ in range(3):
            call()
    times = np.empty((rounds, len(calls)))
    for number in range(rounds):
        for column, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[number, column] = time.perf_counter() - start
        if tfdist.rank() == 0 and rounds >= 10 and number % (rounds // 5) == 0:
            print(f"  round {number + 1} of {rounds}", flush=True)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="4096,1048576,104857600", help="sizes, comma-separated")
    parser.add_argument("--tensors", type=int, default=160, help="tensors that share each size; 1 for 4 KB and less")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    tfdist.init()
    lines = []
    for size_bytes in map(int, arguments.bytes.split(",")):
        tensors = arguments.tensors if size_bytes > 4096 else 1
        calls = [make_call(size_bytes, tensors, compression) for compression in COMPRESSIONS]
        if tfdist.rank() == 0:
            print(f"{size_bytes} bytes in {tensors} tensors on {tfdist.size()} ranks", flush=True)
        times = measure([*calls, make_copy(size_bytes)], arguments.rounds) * 1e6
        for name, column in zip([*COMPRESSIONS, "memcpy"], times.T, strict=True):
            lines.append(f"{size_bytes:>12} {tensors:>8} {name:>8} {np.median(column):>12.1f} {column.min():>12.1f}")
    if tfdist.rank() == 0:
        print(f"{'bytes':>12} {'tensors':>8} {'':>8} {'median us':>12} {'least us':>12}", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
