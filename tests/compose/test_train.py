"""compose/train.yaml as its README says it is started: several containers, one job, one exit status."""

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
FORGE = (
    'ssh-keygen -q -t ed25519 -N "" -f /tmp/key && for told in /run/tfdist/workers/*; do cp /tmp/key.pub "$told"; done'
)


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


def test_a_host_key_that_was_not_told_by_the_worker_is_refused(project):
    job = project("train.yaml", WORKER_TIMEOUT="5")
    job("up", "--no-build", "--detach", "--wait", "worker", check=True)
    # What one would see who answers in the place of worker 1 with a key of his own.
    job("exec", "-T", "--index", "1", "worker", "bash", "-c", FORGE, check=True)
    done = job("run", "--rm", "-T", "launcher")
    assert done.returncode == 1
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stdout + done.stderr or "verification failed" in done.stderr
    assert "cannot be reached by ssh within 5 s (WORKER_TIMEOUT)" in done.stderr


def test_keys_stay_where_they_belong(project):
    job = project("train.yaml")
    job("up", "--no-build", "--detach", "--wait", "worker", check=True)
    listed = job("exec", "-T", "--index", "1", "worker", "ls", "-A", "/run/tfdist/workers", check=True).stdout.split()
    assert len(listed) == 2  # public host keys, a file for each worker
    write = job("exec", "-T", "--index", "1", "worker", "touch", "/run/tfdist/launcher/key.pub")
    assert write.returncode != 0
    assert "Read-only file system" in write.stderr
