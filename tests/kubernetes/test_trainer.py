"""Kubeflow Trainer: its two objects fit each other, and docker/node.sh runs ranks by the variables that it sets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NODE = Path(__file__).resolve().parents[2] / "docker" / "node.sh"
# What the controller sets for `torch`, here of a job of two nodes on one machine.
VARIABLES = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
    "HOSTNAME": "train-node-0-0",
}
TELLS = """\
import tfdist

tfdist.init()
print("ranks", tfdist.allgather_object(tfdist.rank()), "of", tfdist.size(), flush=True)
"""


def of(documents, kind):
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


@pytest.fixture
def job(objects):
    """The runtime and the job of the plain manifest."""
    documents = objects("trainjob.yaml")
    return of(documents, "ClusterTrainingRuntime"), of(documents, "TrainJob")


def test_the_job_names_its_runtime_and_its_nodes(job, rendered):
    runtime, train = job
    assert train["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    options = ("train.trainer=true", "train.workers=3", "train.slots=8", "train.command={python,train.py}")
    chosen = of(rendered(*(word for option in options for word in ("--set", option))), "TrainJob")["spec"]["trainer"]
    assert chosen == {"numNodes": 3, "numProcPerNode": 8, "args": ["tfdist-node", "python", "train.py"]}


def test_the_controller_finds_what_it_fills_in(job):
    """The job `node` with the container `node`, whose step is `trainer`; `torch` brings the variables."""
    runtime, _ = job
    assert runtime["spec"]["mlPolicy"]["torch"] == {}
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node"
    assert node["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert node["template"]["spec"]["backoffLimit"] == 0
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert [each["name"] for each in pod["containers"]] == ["node"]


def test_nodes_get_the_variables_of_the_job(rendered, templates):
    options = ("train.trainer=true", "train.environment.TFDIST_LOG_LEVEL=info", "train.launchOptions=--verbose")
    documents = rendered(*(word for option in (*options, "dataService.enabled=true") for word in ("--set", option)))
    ((_, pod),) = (each for each in templates(documents) if each[0] == "worker")
    (container,) = pod["spec"]["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "JOB_KEY": "/run/tfdist/keys/job_key",
        "WORKER_TIMEOUT": "900",
        "LAUNCH_OPTIONS": "--verbose",
        "TFDIST_DATA_SERVICE": "train-dispatcher:5050",
        "TFDIST_LOG_LEVEL": "info",
    }


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("TrainJob", "trainer", {"numNodes": "two"}),
        ("TrainJob", "trainer", {"replicas": 2}),
        ("TrainJob", "runtimeRef", {"kind": "ClusterTrainingRuntime"}),
        ("ClusterTrainingRuntime", "mlPolicy", {"torch": {"processes": 2}}),
        ("ClusterTrainingRuntime", "template", {"spec": {"replicatedJobs": [{"name": "node"}]}}),
    ],
)
def test_the_schema_refuses_other_values(objects, problems, kind, place, value):
    document = of(objects("trainjob.yaml"), kind)
    assert problems(document) == []
    document["spec"][place] = value
    assert problems(document)


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "job_key"
    file.touch(mode=0o600)
    file.write_text("5b" * 32)
    return file


@pytest.fixture
def words(tmp_path, key):
    """What the script passes to a tfdistrun that only tells; or its result where it fails."""
    (tmp_path / "tfdistrun").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "tfdistrun").chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_KEY": str(key), **VARIABLES}

    def run(*command, **variables):
        done = subprocess.run([NODE, *command], env=given | variables, capture_output=True, text=True, timeout=60)
        return done.stdout.split() if done.returncode == 0 else done

    return run


def test_all_nodes_meet_at_the_first(words, key):
    common = ["--key-file", str(key), "--start-timeout", "600", "--slots-per-host", "1", "python", "train.py"]
    first = ["--nodes", "2", "--rendezvous", "train-node-0-0:29500"]
    assert words("python", "train.py") == first + common
    other = ["--nodes", "2", "--rendezvous", "train-node-0-0.train:29500"]
    assert words("python", "train.py", PET_NODE_RANK="1", HOSTNAME="train-node-0-1") == other + common


def test_options_of_the_job(words):
    found = words("python", "train.py", PET_NPROC_PER_NODE="auto", WORKER_TIMEOUT="9", LAUNCH_OPTIONS="-v --no-mpi")
    assert "--slots-per-host" not in found, "one rank a GPU"
    assert found[-6:] == ["--start-timeout", "9", "-v", "--no-mpi", "python", "train.py"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"PET_NNODES": ""},
            "PET_NNODES is not set; it comes from a runtime of Kubeflow Trainer with 'mlPolicy",
        ),
        ({"JOB_KEY": "/nowhere"}, "JOB_KEY is '/nowhere', which is not a key file"),
    ],
)
def test_what_is_missing_is_said(words, variables, message):
    assert message in words("python", "train.py", **variables).stderr
    assert "no command; write it after the name" in words().stderr


def test_two_nodes_train_as_one_job(tmp_path, key):
    """Both on this machine, with the product's own tfdistrun; the second comes to the first."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    (tmp_path / "ranks.py").write_text(TELLS)
    given = os.environ | VARIABLES | {"JOB_KEY": str(key), "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    given |= {"PET_NPROC_PER_NODE": "2", "HOSTNAME": "127.0.0.1", "WORKER_TIMEOUT": "60"}
    pipe = subprocess.PIPE
    nodes = [
        subprocess.Popen(
            [NODE, sys.executable, "ranks.py"],
            env=given | {"PET_NODE_RANK": str(rank)},
            cwd=tmp_path,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for rank in range(2)
    ]
    told = [each.communicate(timeout=300) for each in nodes]
    assert [each.returncode for each in nodes] == [0, 0], told
    lines = [line for said, _ in told for line in said.splitlines()]
    assert sorted(lines) == [f"[{rank}] ranks [0, 1, 2, 3] of 4" for rank in range(4)]
    assert len(re.findall("this node serves the job", told[0][1] + told[1][1])) == 1
