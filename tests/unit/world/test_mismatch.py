"""What a user reads where one rank has begun `fit` or ended an epoch, and another has not."""

import pytest

from tfdist.world import mismatch

ADVICE = " Every rank must run the same collectives in the same order with the same names. Check for branches."
TEXT = "the ranks are out of step: rank 0 called allreduce 'b', rank 1 called allreduce 'a'." + ADVICE
BATCHES = "Give all ranks the same number of batches"
FIT = "Call fit on every rank"
EPOCHS = "Start all ranks at the same epoch"
CASES = [
    (
        "rank 0 called allreduce 'gradients', rank 1 called barrier 'the end of epoch 2 after 3 batches'.",
        "rank 1 has ended epoch 2 after 3 batches, rank 0 is still training (allreduce 'gradients'). " + BATCHES,
    ),
    (
        "ranks 0-1, 3 called grouped allreduce 'gradients, group 0', rank 2 called barrier 'the end of epoch 1 after 1 "
        "batch'.",
        "rank 2 has ended epoch 1 after 1 batch, ranks 0-1, 3 are still training "
        "(grouped allreduce 'gradients, group 0'). " + BATCHES,
    ),
    (
        "ranks 0-1 called barrier 'the end of epoch 3', rank 2 has finished (called shutdown). Give every rank the "
        "same number of steps, or let those that come to their end first call join.",
        "ranks 0-1 have ended epoch 3, rank 2 has finished. " + BATCHES,
    ),
    (
        "rank 0 called barrier 'the end of epoch 3 after 4 batches', rank 1 called barrier 'the end of epoch 1 after 4 "
        "batches'.",
        "rank 0 has ended epoch 3 after 4 batches, rank 1 has ended epoch 1 after 4 batches. " + EPOCHS,
    ),
    (
        "rank 0 called allgather 'mine', rank 1 called barrier 'the end of epoch 1'.",
        "rank 1 has ended epoch 1, rank 0 called allgather 'mine'. " + BATCHES,
    ),
    (
        "rank 0 called allgather 'the start of fit/bytes', rank 1 has finished (called shutdown). Give every rank the "
        "same number of steps, or let those that come to their end first call join.",
        "rank 0 has begun fit, rank 1 has finished. " + FIT,
    ),
    (
        "ranks 0-1 called allgather 'the start of fit', rank 2 called barrier 'the end of epoch 3'.",
        "rank 2 has ended epoch 3, ranks 0-1 have begun fit. " + BATCHES,
    ),
]


@pytest.mark.parametrize(("deeds", "expected"), CASES)
def test_fit_is_named_by_what_the_user_called(deeds, expected):
    told = mismatch.explained(f"the ranks are out of step: {deeds}{ADVICE}")
    assert told.startswith(f"the ranks are out of step: {expected}")


@pytest.mark.parametrize("message", [TEXT, "rank 1 is lost: 'the start of fit'"])
def test_other_messages_stay_as_they_are(message):
    assert mismatch.explained(message) == message
