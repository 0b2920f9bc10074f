"""What tfdist.launch.job.job knows of the commits of an elastic job."""

from tfdist.launch.job.job import Job


def test_commits_are_noted() -> None:
    job = Job(("h0", "h1"), 30.0, 0.0, (), 1)
    for rank in range(2):
        job.connect(rank, f"h{rank}")
        job.start(rank)
    assert not job.committed
    job.commit(1)
    assert job.committed and job.committers == {1}
