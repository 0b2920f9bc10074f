"""Tools for testing distributed code: ranks on this machine, inputs with exact sums, assertions on weights."""

from tfdist.errors import RankError
from tfdist.testing.parity import assert_close, assert_equal, assert_identical_on_ranks
from tfdist.testing.rank_job import run_ranks
from tfdist.testing.verifiable_input import expected_average, expected_max, expected_min, expected_sum, summable

__all__ = [
    "RankError",
    "assert_close",
    "assert_equal",
    "assert_identical_on_ranks",
    "expected_average",
    "expected_max",
    "expected_min",
    "expected_sum",
    "run_ranks",
    "summable",
]
