"""Times Horovod's grouped allreduce, for compare.py; runs in an environment of its own, which has no tfdist.

Usage: allreduce.py BYTES TENSORS COMPRESSIONS SECONDS, as in: allreduce.py 1048576 160 none,fp16 5
Prints one line of JSON for each compression on rank 0. As in `tfdist bench allreduce`, the compressions take turns.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

LEAST_ROUNDS, MOST_ROUNDS, WARM_UP_ROUNDS = 5, 1000, 3


def make_call(inputs, compression):
    @tf.function
    def reduce_all():
        values = [variable.value() for variable in inputs]
        return hvd.grouped_allreduce(values, op=hvd.Average, compression=getattr(hvd.Compression, compression))

    return reduce_all


def take_turns(calls, rounds):
    """Seconds of each call (column) in each round (row), the mean of the ranks."""
    seconds = np.empty((rounds, len(calls)))
    for row in seconds:
        for column, call in enumerate(calls):
            start = time.perf_counter()
            call()
            row[column] = time.perf_counter() - start
    return hvd.allreduce(tf.constant(seconds), op=hvd.Average).numpy()


def main():
    size_bytes, tensors = int(sys.argv[1]), int(sys.argv[2])
    compressions, budget = sys.argv[3].split(","), float(sys.argv[4])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    elements = size_bytes // 4
    counts = [elements // tensors + (index < elements % tensors) for index in range(tensors)]
    inputs = [tf.Variable(tf.fill([count], hvd.rank() + 1.0)) for count in counts]
    calls = [make_call(inputs, compression) for compression in compressions]
    for call in calls:
        expected = (hvd.size() + 1) / 2
        assert all((result.numpy() == expected).all() for result in call()), "Horovod returned a wrong average"
    trial = take_turns(calls, WARM_UP_ROUNDS).min(axis=0).sum()
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget / trial)))
    seconds = take_turns(calls, rounds)
    for compression, column in zip(compressions, seconds.T):  # noqa: B905
        if hvd.rank() == 0:
            record = {
                "bytes": size_bytes,
                "tensors": tensors,
                "compression": compression,
                "median_us": float(np.median(column)) * 1e6,
                "min_us": float(column.min()) * 1e6,
                "horovod": horovod.__version__,
                "tensorflow": tf.__version__,
            }
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
