"""compose/train.yaml as its README says it is started: several containers, one job, one exit status.

And what others on its network and in its containers see: one port, for whoever has the key of this start.
"""

import re

import pytest

EVALUATE = """
import keras, numpy as np, sys
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
images, labels = load_digits(return_X_y=True)
images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
_, images, _, labels = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
answers = np.argmax(keras.models.load_model(sys.argv[1]).predict(images, verbose=0), axis=1)
print(float(np.mean(answers == labels)))
"""
FAILS = """
import os, time, tfdist
tfdist.init()
if tfdist.rank() == 1:
    os._exit(7)
time.sleep(1000)
"""
# Each rank says how it is connected, and stays until it is told to end.
STAYS = """
import os, time, tfdist
tfdist.init()
tfdist.barrier()
print("sockets", tfdist.gloo_enabled(), tfdist.mpi_enabled(), flush=True)
while not os.path.exists("/checkpoints/end"):
    time.sleep(0.1)
tfdist.barrier()
"""
SAYS = 'import os; print("key of", os.environ["RANK"])'
PORT = 4000
# Of Docker's own name server, in each container.
NAME_SERVER = "127.0.0.11"
STRANGER = """
umask 077
python -c "import secrets; print(secrets.token_hex(32))" > /tmp/other.key
exec tfdist agent --launcher "$1" --key-file /tmp/other.key --wait 5
"""
LEFT = """
cd /run/tfdist/launcher
umask 077
echo 203.0.113.7:4000 > address
printf %064d 7 > job.key
"""
# Files that show what a process was started with, and have the key.
SHOWN = """
for file in /proc/[0-9]*/cmdline /proc/[0-9]*/environ; do
  [[ $file == /proc/$$/* ]] || ! grep -qasf /run/tfdist/launcher/job.key "$file" || echo "$file"
done
"""


def listeners(docker, container):
    """Where something listens: addresses and ports, in IPv4 or IPv6."""
    table = docker("exec", container, "cat", "/proc/net/tcp", "/proc/net/tcp6").stdout
    found = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A":
            address, port = fields[1].split(":")
            parts = bytes.fromhex(address)[::-1] if len(address) == 8 else address
            found.add((".".join(map(str, parts)) if len(address) == 8 else address, int(port, 16)))
    return {each for each in found if each[0] != NAME_SERVER}


def last_of(log, pattern):
    found = re.findall(pattern, log)
    assert found, log[-6000:]
    return found[-1]


def test_trains_the_digits_and_keeps_the_model_in_the_volume(project, docker, images):
    job = project("train.yaml", COMMAND="python digits.py --output /checkpoints --epochs 12")
    status, log = job.up("--scale", "worker=3", "--exit-code-from", "launcher")
    assert status == 0, log
    hosts = ",".join(f"{job.name}-worker-{number}:1" for number in (1, 2, 3))
    assert f"tfdist-launcher: 3 ranks on {hosts}\n" in log
    told = float(last_of(log, r"\| \[0\] validation accuracy: ([\d.]+)"))
    assert told > 0.95
    mount = ("--volume", f"{job.volume('checkpoints')}:/checkpoints:ro", "--env", "TF_CPP_MIN_LOG_LEVEL=3")
    kept = docker.run(images["cpu"], "python", "-c", EVALUATE, "/checkpoints/digits.keras", options=mount)
    assert float(kept) == pytest.approx(told, abs=1e-4)


def test_a_rank_that_fails_fails_the_job_with_its_status(project, code):
    job = project("train.yaml", CODE=code(FAILS), COMMAND="python train.py")
    status, log = job.up("--exit-code-from", "launcher")
    assert status == 7, log
    assert f"rank 1 on {job.name}-worker-2 failed first: exit code 7" in log
    assert "running" not in job("ps", "--all", "--format", "{{.State}}", check=True).stdout


def test_one_port_one_key_and_no_ssh(project, code, docker, images, wait_until, tmp_path):
    job = project("train.yaml", CODE=code(STAYS), COMMAND="python train.py", SLOTS="2")
    names = [f"{job.name}-{each}" for each in ("launcher-1", "worker-1", "worker-2")]
    launcher, *workers = names
    log = tmp_path / "log"
    with job.started(log, "--exit-code-from", "launcher") as process:
        wait_until(lambda: log.read_text().count("] sockets True False") == 4, seconds=120, what="the ranks")

        inspect = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = docker("inspect", "--format", inspect, launcher).stdout.strip()
        assert listeners(docker, launcher) == {(address, PORT)}
        assert [listeners(docker, name) for name in workers] == [set(), set()]

        for name in names:
            assert "ssh" not in docker("top", name, "-eo", "pid,args").stdout
            key = docker("exec", name, "stat", "--format", "%a %u", "/run/tfdist/launcher/job.key").stdout.split()
            assert key == ["600", "1000"]
            assert docker("exec", name, "bash", "-c", SHOWN).stdout == "", "the key is shown by a process"
        refused = docker("exec", workers[0], "touch", "/run/tfdist/launcher/job.key", check=False)
        assert refused.returncode != 0
        assert "Read-only file system" in refused.stderr

        place = ("run", "--rm", "--network", f"{job.name}_default", images["cpu"], "bash", "-c", STRANGER, "bash")
        stranger = docker(*place, f"{address}:{PORT}", check=False)
        assert stranger.returncode == 1, stranger.stderr
        assert "(it closed the connection)" in stranger.stderr
        docker("exec", workers[0], "touch", "/checkpoints/end")
        assert process.wait(120) == 0, log.read_text()
    assert "refused a connection" in log.read_text()


def test_a_key_that_was_left_is_not_taken(project, code):
    """As a launcher leaves it that was killed, while a worker still holds the memory."""
    job = project("train.yaml", CODE=code(SAYS), COMMAND="python train.py", WORKER_TIMEOUT="30")
    job("up", "--no-build", "--detach", "--wait", "worker", check=True)
    job("run", "--rm", "--no-deps", "-T", "launcher", "bash", "-c", LEFT, check=True)
    done = job("run", "--rm", "-T", "launcher")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] key of 0", "[1] key of 1"]
    # None was refused for another key.
    assert "refused" not in done.stderr


def test_more_workers_than_come(project, code):
    job = project("train.yaml", CODE=code(SAYS), COMMAND="python train.py", WORKER_TIMEOUT="3")
    job("up", "--no-build", "--detach", "--wait", "worker", check=True)
    done = job("run", "--rm", "-T", "--env", "WORKERS=3", "launcher")
    assert done.returncode == 1
    assert "fewer than 3 workers have an address under the name 'worker' within 3 s (WORKER_TIMEOUT)" in done.stderr
