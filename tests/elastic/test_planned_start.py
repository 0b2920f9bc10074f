"""Ranks leave at a commit, and others start in their place: hosts come and go, a lost rank can be replaced."""

import pytest
from elastic_job import check_weights, train

pytestmark = pytest.mark.slice("elastic")

SCRIPT = ("--host-discovery-script", "cat hosts")


def test_a_host_gets_more_slots_and_then_fewer(tmp_path):
    """Nothing is done twice, in whatever epoch."""
    (tmp_path / "hosts").write_text("localhost:2")
    victims = "0:17:hosts=localhost/3,2:40:hosts=localhost/1"
    done = train(tmp_path, 2, "--elastic", *SCRIPT, victims=victims)
    # Of what is left of an epoch, an incomplete last round is not trained on.
    assert check_weights(tmp_path, done, [0]) == [[0, 2, 0], [0, 3, 18], [1, 3, 46], [1, 1, 59], [2, 1, 140]]
    assert "there are slots for 3 ranks: all ranks leave at their next commit" in done.stderr
    assert "localhost has fewer slots or none: all ranks leave at their next commit" in done.stderr
    assert "all ranks have left; restarting with 3 ranks on localhost:3\n" in done.stderr
    assert "all ranks have left; restarting with 1 rank on localhost:1\n" in done.stderr


def test_a_lost_rank_is_replaced(tmp_path):
    options = ("--elastic", "--blacklist-cooldown-range", "1", "1")
    done = train(tmp_path, 3, *options, victims="1:10:step,2:20:wait")
    assert check_weights(tmp_path, done, [0, 1, 2], late=[1, 2]) == [
        [0, 3, 0],
        [0, 2, 10],
        [0, 3, 21],
        [1, 3, 43],
        [2, 3, 83],
    ]
    assert "1 lost rank can be replaced: all ranks leave at their next commit" in done.stderr


def test_no_more_ranks_than_asked_for_and_a_script_that_fails(tmp_path):
    (tmp_path / "hosts").write_text("localhost:2")
    done = train(tmp_path, 2, "--elastic", "--max-np", "3", *SCRIPT, victims="0:17:hosts=localhost/9")
    assert check_weights(tmp_path, done, [0, 1, 2], late=[2])[1:] == [[0, 3, 18], [1, 3, 46], [2, 3, 86]]
    (tmp_path / "hosts").unlink()
    done = train(tmp_path, 2, "--elastic", *SCRIPT, victims="")
    assert done.returncode == 2
    assert "--host-discovery-script cat hosts: it exited with status 1: cat: hosts: No such file" in done.stderr
