"""The chart as helm renders it: each value does what its comment says."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
FILES = ("train.yaml", "mpijob.yaml", "trainjob.yaml", "data-service.yaml")


def of(documents, kind, name=None):
    (found,) = (each for each in documents if each["kind"] == kind and name in (None, each["metadata"]["name"]))
    return found["spec"]


def names(documents):
    return {f"{each['kind']}/{each['metadata']['name']}" for each in documents}


def test_manifests_of_a_release_have_its_images(helm, templates, tmp_path):
    """All else of them is the chart with its defaults, which the other tests look at."""
    folder = tmp_path / "new"
    subprocess.run([FOLDER / "render.sh", folder, "registry.example/tfdist:1.2"], check=True, timeout=60)
    for file in FILES:
        target = "data-service" if file == "data-service.yaml" else "cpu"
        pods = [pod["spec"] for _, pod in templates(list(yaml.safe_load_all((folder / file).read_text())))]
        images = {pod["containers"][0]["image"] for pod in pods}
        assert images == {f"registry.example/tfdist:1.2-{target}"}


def test_helm_has_nothing_against_it(helm):
    told = helm("lint", "--strict", str(FOLDER / "chart")).stdout
    assert "0 chart(s) failed" in told


def test_its_version_is_the_products(helm):
    chart = yaml.safe_load((FOLDER / "chart" / "Chart.yaml").read_text())
    assert f'\nversion = "{chart["version"]}"\n' in (ROOT / "pyproject.toml").read_text()
    assert chart["appVersion"] == chart["version"]


@pytest.mark.parametrize("file", ["docker/kubernetes/README.md", "docs/containers.md"])
def test_documented_command_is_taken_by_helm_and_kubernetes(helm, problems, file):
    (command,) = re.findall(r"^helm install ((?:.*\\\n)*.*)$", (ROOT / file).read_text(), re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", f"helm template {command}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    workers = of(documents, "StatefulSet")["template"]["spec"]["containers"][0]
    assert workers["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert [problems(document) for document in documents] == [[]] * len(documents)


def test_everything_is_called_after_the_release(rendered, templates):
    documents = rendered("--set", "dataService.enabled=true", release="other")
    for each in documents:
        assert each["metadata"]["name"].startswith("other-")
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "other"
    for _, template in templates(documents):
        assert template["metadata"]["labels"]["app.kubernetes.io/instance"] == "other"
        assert "train" not in json.dumps(template)


def test_job_and_data_service_in_one_release_find_each_other(rendered):
    documents = rendered("--set", "dataService.enabled=true")
    assert names(documents) == {
        *("NetworkPolicy/train-job", "NetworkPolicy/train-launcher", "NetworkPolicy/train-data-service"),
        *("Service/train-worker", "Service/train-launcher", "StatefulSet/train-worker", "Job/train-launcher"),
        *("Service/train-dispatcher", "Deployment/train-dispatcher"),
        *("Service/train-preprocessor", "StatefulSet/train-preprocessor"),
    }
    launcher = of(documents, "Job")["template"]["spec"]["containers"][0]
    assert {"name": "TFDIST_DATA_SERVICE", "value": "train-dispatcher:5050"} in launcher["env"]


def test_nothing_is_made_that_is_switched_off(rendered):
    assert rendered("--set", "train.enabled=false") == []
    assert names(rendered("--set", "networkPolicy.enabled=false")) == {
        *("Service/train-worker", "Service/train-launcher", "StatefulSet/train-worker", "Job/train-launcher"),
    }
    assert names(rendered("--set", "train.ssh=true")) == {
        *("NetworkPolicy/train-job", "Service/train-worker", "StatefulSet/train-worker", "Job/train-launcher"),
    }
    assert names(rendered("--set", "train.operator=true")) == {"NetworkPolicy/train-job", "MPIJob/train"}
    trainer = {"NetworkPolicy/train-job", "ClusterTrainingRuntime/train-runtime", "TrainJob/train"}
    assert names(rendered("--set", "train.trainer=true")) == trainer


VALUES = {
    "image": "registry.example/tfdist:0.1.0-cuda",
    "imagePullSecrets": [{"name": "pull"}],
    "volumes": {
        "job": {"persistentVolumeClaim": {"claimName": "code"}},
        "checkpoints": {"persistentVolumeClaim": {"claimName": "kept"}},
    },
    "train": {
        "workers": 3,
        "slots": 8,
        "command": ["python", "my train.py", "--lr", "1e-3"],
        "environment": {"TFDIST_FUSION_THRESHOLD": "33554432", "NCCL_DEBUG": 'a "word"'},
        "launchOptions": "--network-interfaces eth0",
        "worker": {
            "resources": {"limits": {"nvidia.com/gpu": 8}},
            "sharedMemory": "8Gi",
            "pod": {"runtimeClassName": "nvidia", "tolerations": [{"operator": "Exists"}]},
        },
        "launcher": {"pod": {"nodeSelector": {"kind": "cheap"}}},
    },
}


@pytest.fixture(params=["operator", "ssh", "enabled"], ids=["operator", "ssh", "agents"])
def chosen(request, rendered, tmp_path):
    """The objects with VALUES, in each way to start the ranks."""
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(VALUES))
    return rendered("--values", str(file), "--set", f"train.{request.param}=true")


def test_values_arrive_in_the_workers(chosen, templates):
    (worker,) = (template["spec"] for role, template in templates(chosen) if role == "worker")
    volumes = {each["name"]: each for each in worker["volumes"]}
    assert volumes["job"] == {"name": "job", **VALUES["volumes"]["job"]}
    assert volumes["checkpoints"]["persistentVolumeClaim"] == {"claimName": "kept"}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert worker["containers"][0]["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 8}
    assert (worker["runtimeClassName"], worker["tolerations"]) == ("nvidia", [{"operator": "Exists"}])


def test_values_arrive_in_the_launcher(chosen, templates):
    (launcher,) = (template["spec"] for role, template in templates(chosen) if role == "launcher")
    assert launcher["nodeSelector"] == {"kind": "cheap"}
    assert "nvidia.com/gpu" not in launcher["containers"][0]["resources"]["limits"]
    assert launcher["containers"][0]["args"] == ["tfdist-launcher", *VALUES["train"]["command"]]
    given = {each["name"]: each["value"] for each in launcher["containers"][0]["env"]}
    assert given.items() >= VALUES["train"]["environment"].items()
    assert given["LAUNCH_OPTIONS"] == "--network-interfaces eth0"
    assert "HOSTFILE" in given or (given["WORKERS"], given["SLOTS"]) == ("3", "8")


def test_values_arrive_in_what_makes_the_pods(chosen, templates):
    for _, template in templates(chosen):
        assert template["spec"]["containers"][0]["image"] == VALUES["image"]
        assert template["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    jobs = [each["spec"] for each in chosen if each["kind"] == "MPIJob"]
    replicas = [each["spec"]["replicas"] for each in chosen if each["kind"] == "StatefulSet"]
    replicas += [job["mpiReplicaSpecs"]["Worker"]["replicas"] for job in jobs]
    assert replicas == [3]
    assert all(job["slotsPerWorker"] == 8 for job in jobs)


def test_values_of_the_data_service_arrive_in_its_pods(rendered):
    options = ("dataService.enabled=true", "dataService.workers=5", "dataService.drainTimeout=7")
    others = (
        *(
            "dataService.image=registry.example/tfdist:0.1.0-data-service",
            "volumes.data.persistentVolumeClaim.claimName=d",
        ),
        *("dataService.worker.resources.requests.cpu=4", "dataService.dispatcher.pod.nodeSelector.kind=cheap"),
        *("networkPolicy.dataServiceFrom[0].podSelector.matchLabels.reads=it",),
    )
    documents = rendered(*(word for option in (*options, *others) for word in ("--set", option)))
    workers = of(documents, "StatefulSet", "train-preprocessor")
    spec = workers["template"]["spec"]
    assert workers["replicas"] == 5
    assert spec["containers"][0]["args"][-4:-2] == ["--drain-timeout", "7"]
    assert spec["terminationGracePeriodSeconds"] == 22
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": 4, "memory": "2Gi"}
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "d"}} in spec["volumes"]
    dispatcher = of(documents, "Deployment")["template"]["spec"]
    assert dispatcher["nodeSelector"] == {"kind": "cheap"}
    assert dispatcher["containers"][0]["image"].endswith("0.1.0-data-service")
    policy = of(documents, "NetworkPolicy", "train-data-service")
    assert policy["ingress"][0]["from"][1] == {"podSelector": {"matchLabels": {"reads": "it"}}}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("trian.workers=3", "additional properties 'trian' not allowed"),
        ("train.wrokers=3", "additional properties 'wrokers' not allowed"),
        ("train.workers=0", "minimum: got 0, want 1"),
        ("train.slots=two", "got string, want integer"),
        ("train.trainer=true,train.operator=true", "two operators of Kubeflow; set one of them"),
        ("train.trainer=true,train.ssh=true", "starts the ranks without ssh; omit train.ssh"),
        ("train.environment.A=1", "got number, want string"),
        ("train.worker.pod.containers[0].name=mine", "'/train/worker/pod'"),
        ("image=", "does not match pattern"),
        ("train.worker.sharedMemory=1GB", "does not match pattern"),
        ("volumes.data.emptyDir.medium=Memory,volumes.data.hostPath.path=/", "maxProperties"),
    ],
)
def test_a_value_that_cannot_be_is_refused(helm, option, message):
    done = helm("template", "train", str(FOLDER / "chart"), "--set", option, check=False)
    assert done.returncode != 0
    assert message in done.stderr
