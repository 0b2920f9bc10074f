"""Starts a benchmark on its rank, and combines the samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

import tfdist

INTER_OP_THREADS = 1


def start(threads: int, inter_op_threads: int = INTER_OP_THREADS) -> None:
    """Sets TensorFlow's threads (0: its own default), which must precede all other use of it, and joins the job."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)
    tfdist.init()


def say(*lines: str) -> None:
    """Prints on rank 0."""
    if tfdist.rank() == 0:
        print(*lines, sep="\n", flush=True)


def introduce(what: str, benchmark: str) -> None:
    """Prints the first line of the output, and a hint if there is only one rank."""
    ranks, hosts = tfdist.size(), tfdist.cross_size()
    where = f"{ranks} rank{'s' * (ranks != 1)} on {hosts} host{'s' * (hosts != 1)}"
    say(f"tfdist bench {benchmark}: {what}, {where}")
    if ranks == 1:
        say(
            "Only one rank: nothing is exchanged, so this is the cost of a collective without peers. "
            f"For 2 ranks: tfdistrun -np 2 tfdist bench {benchmark}"
        )


def mean_over_ranks(samples: Sequence[float], name: str) -> list[float]:
    """The mean over the ranks of each sample."""
    by_rank = tfdist.allgather_object(list(samples), name=name)
    return [sum(values) / len(values) for values in zip(*by_rank, strict=True)]
