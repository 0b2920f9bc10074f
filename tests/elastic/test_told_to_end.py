"""A rank that gets SIGTERM leaves at its next commit: the others lose nothing."""

import pytest
from elastic_job import check_weights, train

pytestmark = pytest.mark.slice("elastic")


def test_a_rank_leaves_at_its_next_commit(tmp_path):
    done = train(tmp_path, 3, "--elastic", victims="0:10:told")
    assert check_weights(tmp_path, done, [1, 2])[:2] == [[0, 3, 0], [0, 2, 11]]
    assert "left at a commit after a signal; 2 ranks continue (--min-np 1)" in done.stderr
    assert "tfdistrun: succeeded on 2 of 3 ranks; lost: rank 0 (" in done.stderr
