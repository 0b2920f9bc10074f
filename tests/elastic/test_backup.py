"""A whole job is told to end: its newest commit is kept on a disk, and the same command goes on from there."""

import signal
from pathlib import Path

import pytest
from elastic_job import check_weights, segments_of, train
from s3 import s3, s3_server  # noqa: F401


@pytest.mark.slice("elastic")
def test_the_next_job_goes_on_where_the_first_was_told_to_end(tmp_path):
    options = ("--elastic", "--backup-dir", "backup")
    first = train(tmp_path, 3, *options, victims="1:5:job")
    assert first.returncode == 128 + 15, first.stdout + first.stderr
    assert "tfdistrun: interrupted by SIGTERM\n" in first.stderr
    assert "left at a commit after a signal" in first.stderr
    (kept,) = (tmp_path / "backup").iterdir()
    assert f"{kept.name} in {tmp_path / 'backup'}; run the same command again to continue from there" in first.stderr
    assert not Path((tmp_path / "commits").read_text()).exists()

    second = train(tmp_path, 2, *options, victims="")
    assert f"continuing from {kept}" in second.stdout + second.stderr
    # Each step is a commit, and nothing after the last one was done.
    assert segments_of(second.stdout, 0)[0][1:] == [2, int(kept.stem.partition("-")[2])]
    second.stdout = first.stdout + second.stdout
    assert check_weights(tmp_path, second, [0])[0] == [0, 3, 0]
    assert not list((tmp_path / "backup").iterdir())


@pytest.mark.slice("elastic")
def test_job_with_a_killed_launcher_leaves_its_newest_commit(tmp_path, wait_until):
    done = train(tmp_path, 2, "--elastic", "--backup-dir", "backup", victims="1:5:launcher")
    assert done.returncode == -signal.SIGKILL
    memory = Path((tmp_path / "commits").read_text())
    wait_until(lambda: not memory.exists(), what="the end of the ranks")
    (kept,) = (tmp_path / "backup").iterdir()
    assert int(kept.stem.partition("-")[2]) >= 6
    assert kept.stat().st_size > 1000


@pytest.mark.slice("elastic")
@pytest.mark.parametrize("ends", ["job", "launcher"])
def test_a_backup_in_a_store(tmp_path, wait_until, s3, ends):  # noqa: F811
    place = s3.folder()
    options = ("--elastic", "--backup-dir", place)
    first = train(tmp_path, 3, *options, victims=f"1:5:{ends}")
    wait_until(lambda: not Path((tmp_path / "commits").read_text()).exists(), what="the end of the ranks")
    (kept,) = (name.removesuffix(".json") for name in s3.objects(place) if name.endswith(".json"))
    second = train(tmp_path, 2, *options, victims="")
    assert f"continuing from {place}/{kept}" in second.stdout + second.stderr
    number = int(kept.partition(".")[0].partition("-")[2])
    assert segments_of(second.stdout, 0)[0][1:] == [2, number]
    second.stdout = first.stdout + second.stdout
    assert check_weights(tmp_path, second, [0])[0] == [0, 3, 0]
    assert s3.objects(place) == {}, second.stderr
    assert not [path for path in tmp_path.iterdir() if ":" in path.name]
