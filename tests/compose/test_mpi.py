"""compose/mpi.yaml: the same job with MPI and ssh, whose keys stay where they belong."""

FORGE = (
    'ssh-keygen -q -t ed25519 -N "" -f /tmp/key && for told in /run/tfdist/workers/*; do cp /tmp/key.pub "$told"; done'
)
SAYS = """
import tfdist
tfdist.init()
print("mpi", tfdist.mpi_enabled(), tfdist.gloo_enabled(), tfdist.size(), flush=True)
"""


def test_ranks_are_connected_by_mpi(project, code):
    job = project("mpi.yaml", CODE=code(SAYS), COMMAND="python train.py")
    status, log = job.up("--scale", "worker=3", "--exit-code-from", "launcher")
    assert status == 0, log
    hosts = ",".join(f"{job.name}-worker-{number}:1" for number in (1, 2, 3))
    assert f"tfdist-launcher: 3 ranks on {hosts}\n" in log
    assert log.count("] mpi True False 3\n") == 3


def test_a_host_key_that_was_not_told_by_the_worker_is_refused(project):
    job = project("mpi.yaml", WORKER_TIMEOUT="5")
    job("up", "--no-build", "--detach", "--wait", "worker", check=True)
    # What one would see who answers in the place of worker 1 with a key of his own.
    job("exec", "-T", "--index", "1", "worker", "bash", "-c", FORGE, check=True)
    done = job("run", "--rm", "-T", "launcher")
    assert done.returncode == 1
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stdout + done.stderr or "verification failed" in done.stderr
    assert "cannot be reached by ssh within 5 s (WORKER_TIMEOUT)" in done.stderr


def test_keys_stay_where_they_belong(project):
    job = project("mpi.yaml")
    job("up", "--no-build", "--detach", "--wait", "worker", check=True)
    listed = job("exec", "-T", "--index", "1", "worker", "ls", "-A", "/run/tfdist/workers", check=True).stdout.split()
    assert len(listed) == 2  # public host keys, a file for each worker
    write = job("exec", "-T", "--index", "1", "worker", "touch", "/run/tfdist/launcher/key.pub")
    assert write.returncode != 0
    assert "Read-only file system" in write.stderr
