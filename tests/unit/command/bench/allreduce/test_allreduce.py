"""The check of what an allreduce returned: right results pass, each kind of wrong one is named."""

from __future__ import annotations

from collections.abc import Callable

HEAD = """
import numpy as np, tfdist
from tfdist.command.bench.allreduce import allreduce
from tfdist.command.bench.allreduce.case import Case
from tfdist.testing import expected_sum

size = {ranks}
tfdist.rank, tfdist.size = (lambda: 0), (lambda: size)
case = Case({elements} * 4, 3, "float32", "{compression}")
total = np.resize(expected_sum((allreduce._PERIOD,), "bfloat16", size).astype(np.float32), {elements})
results = np.split(total / np.float32({divisor}), np.cumsum(case.counts)[:-1])

def message(operation):
    try:
        allreduce._check(case, results, operation)
    except allreduce.WrongResultError as error:
        return str(error)
    return ""
"""


def head(ranks: int, compression: str = "none", divisor: int = 1, elements: int = 200_001) -> str:
    return HEAD.format(ranks=ranks, compression=compression, divisor=divisor, elements=elements)


def test_exact_results_pass_and_one_wrong_element_is_named(run_script: Callable[..., None]) -> None:
    run_script(
        head(ranks=4)
        + """
assert message("sum") == ""
at = int(np.flatnonzero(results[2])[-1])
results[2][at] = np.nextafter(results[2][at], np.float32(9))
assert "wrong in 1 elements of tensor 2" in message("sum") and f"element {at}:" in message("sum"), message("sum")
results[2][at] = np.nan
assert "nan" in message("sum")
"""
    )


def test_a_lost_rank_and_a_swapped_tensor_are_found(run_script: Callable[..., None]) -> None:
    run_script(
        head(ranks=2)
        + """
from tfdist.testing import summable
lost = np.resize(summable((allreduce._PERIOD,), "bfloat16", 1).astype(np.float32), total.size)
kept = list(results)
results[0] = (total - lost)[: results[0].size]
assert "tensor 0" in message("sum")
results[:] = [kept[1], kept[0], kept[2]]
assert "tensor 0" in message("sum")
"""
    )


def test_average_over_three_is_rounded_at_most_once(run_script: Callable[..., None]) -> None:
    run_script(
        head(ranks=3, divisor=3, compression="fp16")
        + """
results[:] = [part.astype(np.float16).astype(np.float32) for part in results]
assert message("average") == ""
results[1] = results[1] * np.float32(1 + 2.0 ** -8)
assert "tensor 1" in message("average")
"""
    )


def test_an_average_over_four_is_exact(run_script: Callable[..., None]) -> None:
    run_script(
        head(ranks=4, divisor=4)
        + """
assert message("average") == ""
results[0] = results[0] * np.float32(1 + 2.0 ** -20)
assert "tensor 0" in message("average")
"""
    )
