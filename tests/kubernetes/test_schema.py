"""Every object against Kubernetes' own schemas, the MPIJob against its fields; both refuse what they do not know."""

import copy

import pytest
import yaml

FILES = ("train.yaml", "mpijob.yaml", "data-service.yaml")
# The oldest that the chart allows, and the newest whose schema the package has.
RELEASES = ("1.25", "1.37")

# Maps whose keys are ours.
FREE = frozenset({"labels", "matchLabels", "selector", "limits", "requests"})


def fields(value, path=()):
    """The paths of all fields that a schema names."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield (*path, key)
            if key not in FREE or "matchLabels" in below:
                yield from fields(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from fields(below, (*path, index))


def misspelt(document, path):
    changed = copy.deepcopy(document)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[f"{path[-1]}s"] = place.pop(path[-1])
    return changed


@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_as_kubernetes_wants_it(manifest, problems, release):
    for document in manifest:
        assert problems(document, release) == [], document["kind"]


@pytest.mark.parametrize("options", [(), ("train.operator=true",), ("networkPolicy.enabled=false",)])
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


def test_a_misspelt_field_is_found_wherever_it_is(objects, problems):
    seen = set()
    for file in FILES:
        for document in objects(file):
            for path in fields(document):
                if path in (("kind",), ("apiVersion",)):
                    continue
                place = (document["kind"], *(step for step in path if isinstance(step, str)))
                if place not in seen:
                    seen.add(place)
                    assert problems(misspelt(document, path)), place
    assert {("MPIJob", "spec", "runPolicy"), ("NetworkPolicy", "spec", "ingress", "from", "podSelector")} <= seen
    assert len(seen) > 200


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
