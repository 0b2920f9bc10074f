"""compose/data-service.yaml: images are prepared by other containers than the one that trains."""

import json
import re

TRAIN = "python data_service.py --data-service dispatcher:5050 --folder /data/digits --epochs 2 --images 400"


def test_trains_from_other_containers(project):
    job = project("data-service.yaml", DATA_COMMAND=TRAIN, TF_CPP_MIN_LOG_LEVEL="3")
    status, log = job.up("--scale", "preprocessor=2", "--exit-code-from", "trainer")
    assert status == 0, log
    (accuracy,) = re.findall(r"\| accuracy: ([\d.]+)", log)
    assert float(accuracy) > 0.25  # of ten classes
    assert re.search(r"\| waited for data: \d+% of the last epoch", log)
    ended = job("ps", "--all", "--format", "{{.Name}} {{.ExitCode}}", check=True).stdout.splitlines()
    names = ("trainer-1", "dispatcher-1", "preprocessor-1", "preprocessor-2")
    assert sorted(ended) == sorted(f"{job.name}-{name} 0" for name in names), log


def test_preprocessors_leave_one_after_the_other(project, docker):
    """Those that have gone are looked for by a name that nobody answers to."""
    job = project("data-service.yaml", DATA_WORKERS="3")
    job("up", "--no-build", "--detach", "--wait", "preprocessor", check=True)
    names = [f"{job.name}-preprocessor-{number}" for number in (1, 2, 3)]
    for name in names:
        docker("stop", "--time", "20", name)
    found = json.loads(docker("inspect", *names).stdout)
    logs = job("logs", "preprocessor").stdout
    assert [container["State"]["ExitCode"] for container in found] == [0, 0, 0], logs
    assert "Traceback" not in logs


def test_status_names_workers_and_health_is_the_control_ports(project, docker):
    job = project("data-service.yaml", DATA_WORKERS="2")
    job("up", "--no-build", "--detach", "--wait", "preprocessor", check=True)
    told = job("exec", "-T", "dispatcher", "tfdist", "data-service", "status", "dispatcher:5050", "--json", check=True)
    states = [worker["state"] for worker in json.loads(told.stdout)["workers"]]
    assert states == ["ready", "ready"]
    names = [f"{job.name}-dispatcher-1", f"{job.name}-preprocessor-1", f"{job.name}-preprocessor-2"]
    for container in json.loads(docker("inspect", *names).stdout):
        assert container["State"]["Health"]["Status"] == "healthy"
        assert "5051/healthz" in " ".join(container["Config"]["Healthcheck"]["Test"])


def test_a_trainer_that_fails_fails_the_job(project, code):
    job = project("data-service.yaml", CODE=code("raise SystemExit(9)"), DATA_COMMAND="python train.py")
    status, log = job.up("--exit-code-from", "trainer")
    assert status == 9, log
