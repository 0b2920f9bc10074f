"""Times the grouped allreduce on this rank and checks its results. `case` lists the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.command.bench.allreduce import bandwidth, plot
from tfdist.command.bench.allreduce.case import Case, groups_of, uncompressed
from tfdist.command.bench.measure import machine, rank, record, size, statistic, table
from tfdist.command.bench.measure.progress import Progress
from tfdist.command.bench.measure.request import Allreduce
from tfdist.command.bench.measure.turn import rounds_within, take_turns
from tfdist.config import COMPRESSIONS
from tfdist.errors import TfdistError
from tfdist.testing import expected_sum, summable

# Inputs repeat after this many elements: a prime, so that no two power-of-two chunks are equal.
_PERIOD = 65_521
_WARM_UP_ROUNDS = 3
HEAD = "size,tensors,dtype,wire,median us,least us,algbw GB/s,busbw GB/s,memcpy us,x memcpy".split(",")


class WrongResultError(TfdistError, ArithmeticError):
    """A measured allreduce returned wrong results."""


def run(options: Allreduce) -> None:
    """Measures, prints the table on rank 0, and writes the requested files."""
    rank.start(options.threads)
    how = "eager" if options.eager else "in a tf.function"
    rank.introduce(f"{options.operation}, {how}, {options.threads} thread{'s' * (options.threads != 1)}", "allreduce")
    for dtype in uncompressed(options.dtypes, options.compressions):
        rank.say(f"{dtype} is sent uncompressed: no compression applies to it.")
    rows = [row for group in groups_of(options) for row in _measure(group, options)]
    if tfdist.rank() != 0:
        return
    print(table.aligned(HEAD, [_cells(row) for row in rows]), flush=True)
    if options.csv is not None:
        record.write_csv(options.csv, rows)
    if options.json is not None:
        document = {"benchmark": "allreduce", "machine": machine.describe(), "options": options, "rows": rows}
        record.write_json(options.json, document)
    if options.plot is not None:
        plot.write(
            options.plot, rows, f"allreduce ({options.operation}), {tfdist.size()} rank{'s' * (tfdist.size() != 1)}"
        )


def _measure(group: Sequence[Case], options: Allreduce) -> list[dict[str, Any]]:
    """The rows of one size, timed in turn with each other and with a memcpy of the same bytes."""
    inputs = {case.dtype: _inputs(case) for case in group}
    calls = [_call(case, inputs[case.dtype], options) for case in group]
    for case, call in zip(group, calls, strict=True):
        _check(case, call(), options.operation)
    copy = _copy(group[0].size_bytes)
    title = f"{size.show(group[0].size_bytes)} in {group[0].tensors} tensor{'s' * (group[0].tensors != 1)}"
    trial = take_turns([*calls, copy], _WARM_UP_ROUNDS, tfdist.barrier, lambda _: None)
    rounds = options.rounds or _agree(options.seconds, sum(min(samples) for samples in trial))
    progress = Progress(title, rounds, shown=tfdist.rank() == 0)
    samples = take_turns([*calls, copy], rounds, tfdist.barrier, progress.done)
    for case, call in zip(group, calls, strict=True):
        _check(case, call(), options.operation)
    *times, copies = (rank.mean_over_ranks(column, "bench.times") for column in samples)
    return [_row(case, column, statistic.median(copies)) for case, column in zip(group, times, strict=True)]


def _agree(budget_s: float, round_s: float) -> int:
    """The number of rounds that fit into the time on rank 0, the same for all ranks."""
    return int(tfdist.broadcast_object(rounds_within(budget_s, round_s), root_rank=0, name="bench.rounds"))


def _inputs(case: Case) -> list[tf.Variable]:
    mine = np.resize(summable((_PERIOD,), _value_type(case.dtype), tfdist.rank()), sum(case.counts))
    parts = np.split(mine, np.cumsum(case.counts)[:-1])
    return [tf.Variable(tf.cast(part, case.dtype), trainable=False) for part in parts]


def _value_type(dtype: str) -> str:
    """A dtype whose values stay exact in any 16-bit compression."""
    return dtype if "int" in dtype else "bfloat16"


def _call(case: Case, inputs: Sequence[tf.Variable], options: Allreduce) -> Callable[[], list[Any]]:
    operation = tfdist.Average if options.operation == "average" else tfdist.Sum
    name = f"bench.{case.size_bytes}.{case.tensors}.{case.dtype}.{case.compression}"

    def reduce_all() -> list[Any]:
        values = [variable.value() for variable in inputs]
        return tfdist.grouped_allreduce(values, compression=case.compression, op=operation, name=name)

    return reduce_all if options.eager else tf.function(reduce_all)


def _copy(size_bytes: int) -> Callable[[], None]:
    source = np.ones(size_bytes, np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def _check(case: Case, results: Sequence[Any], operation: str) -> None:
    """Sums, and averages over a power of two ranks, are exact; other averages may be rounded once.

    Raises:
        WrongResultError: Names the row, the tensor and the first wrong element.
    """
    ranks = tfdist.size()
    total = expected_sum((_PERIOD,), _value_type(case.dtype), ranks).astype(np.float64)
    exact = operation == "sum" or ranks & (ranks - 1) == 0
    # The spacing of numbers just above 1: the largest relative error of rounding once to this type.
    wire = tf.as_dtype(COMPRESSIONS[case.compression] or case.dtype).as_numpy_dtype
    slack = 0.0 if exact else float(ml_dtypes.finfo(wire).eps)  # type: ignore[no-untyped-call]
    whole = np.resize(total if operation == "sum" else total / ranks, sum(case.counts))
    for index, expected in enumerate(np.split(whole, np.cumsum(case.counts)[:-1])):
        found = np.asarray(results[index]).astype(np.float64)
        wrong = np.flatnonzero(~(np.abs(found - expected) <= slack * np.abs(expected)))
        if wrong.size:
            raise WrongResultError(
                f"rank {tfdist.rank()}: the allreduce of {case} is wrong in {wrong.size} elements of tensor {index}; "
                f"the first is element {wrong[0]}: {found[wrong[0]]}, expected {expected[wrong[0]]}"
            )


def _row(case: Case, times: Sequence[float], copy_s: float) -> dict[str, Any]:
    middle, ranks = statistic.median(times), tfdist.size()
    return {
        "bytes": case.size_bytes,
        "tensors": case.tensors,
        "dtype": case.dtype,
        "compression": case.compression,
        "ranks": ranks,
        "rounds": len(times),
        "median_us": middle * 1e6,
        "min_us": min(times) * 1e6,
        "algbw_gb_s": bandwidth.algorithm(case.size_bytes, middle) / 1e9,
        "busbw_gb_s": bandwidth.bus(case.size_bytes, middle, ranks) / 1e9,
        "memcpy_us": copy_s * 1e6,
        "memcpy_ratio": middle / copy_s,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [f"{row[name]:.1f}" for name in ("median_us", "min_us")]
    rates = [f"{row[name]:.3f}" for name in ("algbw_gb_s", "busbw_gb_s")]
    copy = [f"{row['memcpy_us']:.1f}", f"{row['memcpy_ratio']:.2f}"]
    return [size.show(row["bytes"]), str(row["tensors"]), row["dtype"], row["compression"], *numbers, *rates, *copy]
