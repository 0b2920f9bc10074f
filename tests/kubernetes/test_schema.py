"""Every object against Kubernetes' own schemas, the MPIJob against its fields, Kubeflow Trainer's by its package.

All refuse what they do not know.
"""

import pytest
import yaml

# The oldest that the chart allows, and the newest whose schema the package has.
RELEASES = ("1.25", "1.37")


@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_as_kubernetes_wants_it(manifest, problems, release):
    for document in manifest:
        assert problems(document, release) == [], document["kind"]


@pytest.mark.parametrize(
    "options",
    [(), ("train.operator=true",), ("train.trainer=true",), ("train.ssh=true",), ("networkPolicy.enabled=false",)],
)
def test_what_the_chart_makes_of_other_values_is_so_too(rendered, problems, options):
    others = (
        *(
            "dataService.enabled=true",
            "train.worker.resources.limits.nvidia\\.com/gpu=8",
            "imagePullSecrets[0].name=key",
        ),
        *("volumes.data.persistentVolumeClaim.claimName=data", "train.worker.pod.runtimeClassName=nvidia"),
        *("train.launchOptions=--verbose", "train.launcher.pod.priorityClassName=low"),
        *("dataService.worker.pod.nodeSelector.disk=fast", "dataService.dispatcher.pod.schedulerName=own"),
        *("networkPolicy.dataServiceFrom[0].podSelector.matchLabels.reads=it",),
    )
    documents = rendered(*(word for option in (*options, *others) for word in ("--set", option)))
    for document in documents:
        assert problems(document) == [], yaml.safe_dump(document)


def test_a_field_that_kubernetes_does_not_know_is_found(manifest, problems, templates):
    places = [document["spec"] for document in manifest]
    places += [each for _, pod in templates(manifest) for each in (pod["spec"], *pod["spec"]["containers"])]
    for place in places:
        place["imagee"] = "tfdist:cpu"
        assert any(problems(document) for document in manifest), place
        del place["imagee"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mpiImplementation", "Open MPI"),
        ("slotsPerWorker", "2"),
        ("launcherCreationPolicy", "WhenReady"),
        ("runPolicy", {"cleanPodPolicy": "Never"}),
        ("sshAuthMountPath", "keys"),
        ("mpiReplicaSpecs", {"Worker": {}}),
    ],
)
def test_the_schema_of_an_mpijob_refuses_other_values(objects, problems, field, value):
    (document,) = (each for each in objects("mpijob.yaml") if each["kind"] == "MPIJob")
    document["spec"][field] = value
    assert problems(document)
