"""All ranks are started anew where those that are left cannot go on, and train on from the newest commit."""

import sys
from pathlib import Path

import pytest
from elastic_job import check_weights, run, segments_of, train


@pytest.mark.slice("elastic")
def test_too_few_are_left(tmp_path):
    """Also in the second generation, in another epoch, whose order of the data was never that of new processes."""
    done = train(tmp_path, 2, "--min-np", "2", "--reset-limit", "2", victims="1:17:step,0:60:step")
    # Rank 0 counts anew in the second generation.
    assert check_weights(tmp_path, done, [0, 1]) == [[0, 2, 0], [0, 2, 17], [1, 2, 60], [1, 2, 77], [2, 2, 120]]
    assert done.stderr.count("only 1 rank was left (--min-np 2); restarting with 2 ranks on localhost:2\n") == 2


def test_a_loss_in_place_and_then_all_anew(tmp_path):
    done = train(tmp_path, 3, "--min-np", "2", victims="1:10:step,2:20:step")
    assert check_weights(tmp_path, done, [0, 1, 2], late=[1]) == [
        [0, 3, 0],
        [0, 2, 10],
        [0, 3, 20],
        [1, 3, 43],
        [2, 3, 83],
    ]


@pytest.mark.slice("elastic")
def test_the_limit(tmp_path):
    """One time fewer than in the test above that succeeds."""
    done = train(tmp_path, 2, "--min-np", "2", "--reset-limit", "1", victims="1:17:step,0:60:step")
    assert done.returncode == 137
    assert done.stderr.endswith("\nnot restarting the ranks: --reset-limit 1 is reached\n")


@pytest.mark.slice("elastic")
def test_one_rank_alone(tmp_path):
    done = train(tmp_path, 1, "--elastic", victims="0:50:step")
    assert check_weights(tmp_path, done, [0]) == [[0, 1, 0], [0, 1, 50], [1, 1, 120], [2, 1, 240]]


@pytest.mark.slice("elastic")
def test_the_newest_commit_is_damaged(tmp_path):
    done = train(tmp_path, 1, "--elastic", victims="0:50:damage")
    assert check_weights(tmp_path, done, [0]) == [[0, 1, 0], [0, 1, 49], [1, 1, 120], [2, 1, 240]]
    assert done.stderr.count(".commit is skipped: its checksum does not match its contents") == 1


@pytest.mark.slice("elastic")
def test_killed_in_a_commit_and_again_when_started_anew(tmp_path):
    """The commit before is whole. A start that comes to nothing is no reason to give up."""
    done = train(tmp_path, 2, "--min-np", "2", victims="0:17:commit,1:0:again")
    assert check_weights(tmp_path, done, [0, 1]) == [[0, 2, 0], [0, 2, 17], [1, 2, 60], [2, 2, 120]]
    assert done.stderr.count("; restarting with 2 ranks on localhost:2\n") == 2
    assert "killed by SIGXFSZ; the job could not continue without it" in done.stderr
    assert ".commit is skipped" not in done.stderr


@pytest.mark.slice("elastic")
def test_a_rank_that_ends_too_early(tmp_path):
    """With status 0, as it says; the training must not be taken for one that has ended well."""
    done = train(tmp_path, 2, "--elastic", victims="1:17:exit=0")
    assert check_weights(tmp_path, done, [0, 1]) == [[0, 2, 0], [0, 2, 17], [1, 2, 60], [2, 2, 120]]
    assert "since no rank was left; restarting with 2 ranks on localhost:2\n" in done.stderr
    assert "rank 1 has finished" in done.stderr


@pytest.mark.slice("elastic")
def test_the_training_had_ended(tmp_path):
    """What fails behind it fails for good, and the first training of a script is not done twice."""
    done = train(tmp_path, 1, "--elastic", "--reset-limit", "1", victims="0:0:after")
    assert segments_of(done.stdout, 0) == [[0, 1, 0], [1, 1, 120], [2, 1, 240]]
    assert check_weights(tmp_path, done, [0]) == segments_of(done.stdout, 0)


def test_a_program_that_fails_before_its_first_commit(tmp_path):
    note = "open('commits', 'w').write(os.environ['TFDIST_COMMITS'])"
    (tmp_path / "fails.py").write_text(f"import os, tfdist\ntfdist.init()\n{note}\nraise SystemExit(7)\n")
    done = run(tmp_path, "-m", "tfdist.launch", "-np", "2", "--min-np", "2", sys.executable, "fails.py")
    assert done.returncode == 7
    assert "not restarting the ranks: they committed nothing" in done.stderr
    assert not Path((tmp_path / "commits").read_text()).exists()
