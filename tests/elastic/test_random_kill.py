"""One of four ranks is killed at a random moment of a fit, whatever it does then. `make soak` has fifty moments."""

import os
import random

import pytest
from elastic_job import check_weights, train

pytestmark = pytest.mark.slice("elastic")

SIZE, STEPS = 4, 90
# From the end of a step into the next ones, a validation or a commit.
MOST_SECONDS = 0.06
RUNS = 3 if os.environ.get("TFDIST_TEST_SAMPLE") else 50


@pytest.mark.parametrize("seed", range(RUNS))
def test_every_run_completes(tmp_path, seed):
    drawn = random.Random(seed)
    victim, step, seconds = drawn.randrange(SIZE), drawn.randrange(STEPS - 5), drawn.uniform(0, MOST_SECONDS)
    done = train(tmp_path, SIZE, "--elastic", victims=f"{victim}:{step}:later={seconds:.4f}")
    segments = check_weights(tmp_path, done, [rank for rank in range(SIZE) if rank != victim])
    assert segments[-1][1] == SIZE - 1, f"rank {victim}, {seconds} s after step {step}"
