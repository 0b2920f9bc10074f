"""What the manifests mean: names that fit each other, and our images, scripts and variables as they are."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SSHD = dict(line.split(" ", 1) for line in (DOCKER / "sshd_config").read_text().splitlines() if line[0] != "#")
# What Kubeflow's operator adds to the pods of an MPIJob.
OPERATOR_MOUNTS = {
    "worker": {"/run/tfdist/keys"},
    "launcher": {"/run/tfdist/keys", "/etc/mpi"},
}


def header_variables(script):
    """The variables that the header of a script explains."""
    return set(re.findall(r"^#   ([A-Z_]+)  ", (DOCKER / script).read_text(), re.MULTILINE))


def matches(selector, labels):
    """Whether a LabelSelector, or a Service's map, takes these labels."""
    wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", ())
    )


def container(template):
    (only,) = template["spec"]["containers"]
    return only


def pod(templates, documents, role):
    (template,) = (template for each, template in templates(documents) if each == role)
    return template


def environment(template):
    return {each["name"]: each.get("value") for each in container(template).get("env", ())}


def test_selectors_take_the_pods_they_are_for_and_no_others(manifest, templates):
    pods = [(role, template["metadata"]["labels"]) for role, template in templates(manifest)]
    for document in manifest:
        spec = document["spec"]
        if document["kind"] in ("StatefulSet", "Deployment"):
            own = spec["template"]["metadata"]["labels"]
            assert [labels for _, labels in pods if matches(spec["selector"], labels)] == [own]
        if document["kind"] == "Service":
            taken = {role for role, labels in pods if matches(spec["selector"], labels)}
            assert taken == {document["metadata"]["name"].rpartition("-")[2]}


def test_headless_services_name_pods_and_the_launcher(manifest):
    headless = {
        document["metadata"]["name"]
        for document in manifest
        if document["kind"] == "Service" and document["spec"].get("clusterIP") == "None"
    }
    named = {document["spec"]["serviceName"] for document in manifest if document["kind"] == "StatefulSet"}
    # A launcher must see the address of each worker itself, and not that of a proxy.
    assert named == headless - {"train-launcher"}


def test_no_two_objects_have_one_name(manifest):
    names = [(document["kind"], document["metadata"]["name"]) for document in manifest]
    assert len(names) == len(set(names))
    assert all("namespace" not in document["metadata"] for document in manifest)


def test_every_pod_has_a_policy_for_its_release_alone(manifest, templates):
    policies = [document["spec"] for document in manifest if document["kind"] == "NetworkPolicy"]
    for role, template in templates(manifest):
        labels = template["metadata"]["labels"]
        (policy,) = (each for each in policies if matches(each["podSelector"], labels))
        assert policy["policyTypes"] == ["Ingress"]
        (rule,) = policy["ingress"]
        (peer,) = rule["from"]
        allowed = labels
        if role == "launcher" and "agents" in str(container(template)):  # from workers alone, at one port
            allowed = labels | {"app.kubernetes.io/component": "worker"}
            assert not matches(peer["podSelector"], labels)
            assert rule["ports"] == [{"port": 4000}]
        assert matches(peer["podSelector"], allowed), role
        assert not matches(peer["podSelector"], allowed | {"app.kubernetes.io/instance": "another"})
        assert not matches(peer["podSelector"], {"app": "stranger"})
        assert set(peer) == {"podSelector"}  # no other namespace


def test_job_pods_reach_the_data_service_not_vice_versa(objects, templates):
    (service,) = (each["spec"] for each in objects("data-service.yaml") if each["kind"] == "NetworkPolicy")
    jobs = [each["spec"] for each in objects("train.yaml") if each["kind"] == "NetworkPolicy"]
    worker = pod(templates, objects("train.yaml"), "worker")["metadata"]["labels"]
    preprocessor = pod(templates, objects("data-service.yaml"), "preprocessor")["metadata"]["labels"]
    assert matches(service["ingress"][0]["from"][0]["podSelector"], worker)
    assert not any(matches(job["ingress"][0]["from"][0]["podSelector"], preprocessor) for job in jobs)
    assert {each["port"] for each in service["ingress"][0]["ports"]} == {5050, 5051}


def test_mounts_have_volumes_and_volumes_are_mounted(manifest, templates):
    for role, template in templates(manifest):
        mounts = container(template)["volumeMounts"]
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert {each["name"] for each in mounts} == set(volumes), role
        assert len({each["mountPath"] for each in mounts}) == len(mounts)
        for mount in mounts:
            if {"secret", "configMap"} & volumes[mount["name"]].keys():
                assert mount["readOnly"], role


def test_container_meets_the_restricted_pod_security_standard(manifest, templates):
    for role, template in templates(manifest):
        spec, settings = template["spec"], container(template)["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"], role
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert settings["capabilities"] == {"drop": ["ALL"]}
        assert settings["allowPrivilegeEscalation"] is False
        assert settings["readOnlyRootFilesystem"] is True
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"emptyDir", "secret", "configMap"} & volume.keys() for volume in spec["volumes"])
        assert not any("hostPort" in port for port in container(template).get("ports", ()))


def test_every_container_says_what_it_needs(manifest, templates):
    for role, template in templates(manifest):
        resources = container(template)["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys(), role
        assert "memory" in resources["limits"]


def test_probes_ask_ports_that_there_are(manifest, templates):
    for _, template in templates(manifest):
        ports = {each["name"]: each["containerPort"] for each in container(template).get("ports", ())}
        for name, probe in container(template).items():
            if name.endswith("Probe") and "httpGet" in probe:
                assert ports[probe["httpGet"]["port"]] == 5051
                assert probe["httpGet"]["path"] in ("/healthz", "/readyz")
    for document in manifest:
        if document["kind"] == "Service":
            template = pod(templates, manifest, document["metadata"]["name"].rpartition("-")[2])
            named = {each["name"]: each["containerPort"] for each in container(template).get("ports", ())}
            assert all(named[each["targetPort"]] == each["port"] for each in document["spec"].get("ports", ()))


def test_user_image_and_program_are_those_of_the_dockerfile(manifest, templates):
    (uid,) = re.findall(r"useradd --uid (\d+)", DOCKERFILE)
    targets = re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE)
    programs = re.findall(r"/usr/local/bin/(\S+)", DOCKERFILE)
    for role, template in templates(manifest):
        assert template["spec"]["securityContext"]["runAsUser"] == int(uid)
        assert template["spec"]["securityContext"]["fsGroup"] == int(uid)
        name, _, target = container(template)["image"].partition(":")
        assert name == "tfdist" and target in targets
        # The entry point, tini, is the image's own.
        assert "command" not in container(template)
        if role in ("worker", "launcher"):
            assert container(template)["args"][0] in programs


SCRIPTS = {"tfdist-agent": "agent.sh", "tfdist-worker": "worker.sh", "tfdist-launcher": "launcher.sh"}


@pytest.fixture(params=["agents", "ssh", "operator"])
def job(request, rendered):
    """The objects of a job, in each way to start its ranks."""
    return rendered(*(() if request.param == "agents" else ("--set", f"train.{request.param}=true")))


def test_scripts_get_their_variables_and_mounted_files(job, templates):
    for role in ("worker", "launcher"):
        template = pod(templates, job, role)
        given = environment(template)
        assert given.keys() <= header_variables(SCRIPTS[container(template)["args"][0]]), role
        assert given.keys() & {"HOST_KEY", "LAUNCHER_KEY"} in ({"HOST_KEY", "LAUNCHER_KEY"}, set())
        assert ("JOB_KEY" in given) != ("HOST_KEY" in given)
        mounted = {each["mountPath"] for each in container(template)["volumeMounts"]}
        if any(document["kind"] == "MPIJob" for document in job):
            mounted |= OPERATOR_MOUNTS[role]
        for name in given.keys() & {"HOST_KEY", "LAUNCHER_KEY", "JOB_KEY", "HOSTFILE"}:
            assert str(Path(given[name]).parent) in mounted, name


@pytest.mark.parametrize("ssh", ["true", "false"], ids=["ssh", "agents"])
def test_each_side_gets_only_the_keys_it_needs(rendered, templates, ssh):
    documents = rendered("--set", f"train.ssh={ssh}")
    expected = {"worker": ["job_key"], "launcher": ["job_key"]}
    if ssh == "true":
        expected = {"worker": ["host_key", "launcher_key.pub"], "launcher": ["launcher_key", "host_key.pub"]}
    for role, keys in expected.items():
        template = pod(templates, documents, role)
        (volume,) = (each["secret"] for each in template["spec"]["volumes"] if each["name"] == "keys")
        assert [item["key"] for item in volume["items"]] == keys
        assert volume["secretName"] == "train-keys"
        assert volume["defaultMode"] == 0o440
        named = {Path(value).name for name, value in environment(template).items() if name.endswith("_KEY")}
        assert named == {item["path"] for item in volume["items"]}


def test_agents_dial_the_port_of_the_launcher(objects, templates):
    documents = objects("train.yaml")
    worker, launcher = (pod(templates, documents, role) for role in ("worker", "launcher"))
    name, _, port = environment(worker)["LAUNCHER"].partition(":")
    services = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Service"}
    assert matches(services[name]["selector"], launcher["metadata"]["labels"])
    assert port == environment(launcher)["AGENTS_PORT"]
    assert container(launcher)["ports"] == [{"name": "agents", "containerPort": int(port)}]
    assert "ports" not in container(worker), "nothing listens there"
    assert environment(worker)["STAY"], "its files can be copied after the job"
    assert "ssh" not in json.dumps(documents)


def test_the_operator_mounts_its_keys_where_the_scripts_look(objects, templates):
    documents = objects("mpijob.yaml")
    (job,) = (each["spec"] for each in documents if each["kind"] == "MPIJob")
    place = job["sshAuthMountPath"]
    assert environment(pod(templates, documents, "worker")) == {
        "HOST_KEY": f"{place}/id_rsa",
        "LAUNCHER_KEY": f"{place}/authorized_keys",
    }
    launcher = environment(pod(templates, documents, "launcher"))
    assert launcher["HOST_KEY"] == f"{place}/id_rsa.pub"
    assert launcher["LAUNCHER_KEY"] == f"{place}/id_rsa"
    assert launcher["HOSTFILE"] == "/etc/mpi/hostfile"
    # A hostfile has all of them, so the launcher need not count.
    assert not {"WORKERS", "SLOTS", "WORKER_SERVICE"} & launcher.keys()


@pytest.mark.parametrize("ssh", ["true", "false"], ids=["ssh", "agents"])
def test_the_launcher_knows_its_workers(rendered, templates, ssh):
    documents = rendered("--set", f"train.ssh={ssh}")
    (workers,) = (each for each in documents if each["kind"] == "StatefulSet")
    given = environment(pod(templates, documents, "launcher"))
    assert int(given["WORKERS"]) == workers["spec"]["replicas"]
    if ssh == "true":
        assert given["WORKER_SERVICE"] == workers["spec"]["serviceName"]
        (service,) = (each for each in documents if each["kind"] == "Service")
        # Only workers that are ready may be found, so that none is left out of the count.
        assert "publishNotReadyAddresses" not in service["spec"]


def test_a_failed_job_is_not_started_again(objects):
    (launcher,) = (each["spec"] for each in objects("train.yaml") if each["kind"] == "Job")
    assert (launcher["backoffLimit"], launcher["template"]["spec"]["restartPolicy"]) == (0, "Never")
    (job,) = (each["spec"] for each in objects("mpijob.yaml") if each["kind"] == "MPIJob")
    assert job["runPolicy"]["backoffLimit"] == 0
    assert {each["restartPolicy"] for each in job["mpiReplicaSpecs"].values()} == {"Never"}


def test_ranks_have_memory_to_share(job, templates):
    worker = pod(templates, job, "worker")
    mounts = {each["mountPath"]: each["name"] for each in container(worker)["volumeMounts"]}
    volumes = {each["name"]: each for each in worker["spec"]["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("way", ["ssh", "operator"])
def test_the_folders_of_ssh_can_be_written(rendered, templates, way):
    documents = rendered("--set", f"train.{way}=true")
    worker = pod(templates, documents, "worker")
    mounts = {each["mountPath"]: each["name"] for each in container(worker)["volumeMounts"]}
    own = str(Path(SSHD["HostKey"]).parent)
    volumes = {each["name"]: each for each in worker["spec"]["volumes"]}
    assert volumes[mounts[own]]["emptyDir"]["medium"] == "Memory"
    assert container(worker)["readinessProbe"]["exec"]["command"] == ["test", "-s", SSHD["PidFile"]]
    assert container(worker)["ports"] == [{"name": "ssh", "containerPort": int(SSHD["Port"])}]
    launcher = pod(templates, documents, "launcher")
    mounts = {each["mountPath"]: each["name"] for each in container(launcher)["volumeMounts"]}
    (home,) = re.findall(r"--home-dir (\S+)", DOCKERFILE)
    volumes = {each["name"]: each for each in launcher["spec"]["volumes"]}
    assert volumes[mounts[f"{home}/.ssh"]]["emptyDir"]["medium"] == "Memory"


def test_both_kinds_of_job_by_ssh_run_the_same_pods(rendered, templates):
    """Apart from keys and from how the workers are found."""
    for role in ("worker", "launcher"):
        pods = [pod(templates, rendered("--set", f"train.{way}=true"), role) for way in ("ssh", "operator")]
        for each in pods:
            each["spec"].pop("restartPolicy", None)
            container(each)["env"] = None
            container(each)["volumeMounts"] = [m for m in container(each)["volumeMounts"] if m["name"] != "keys"]
            each["spec"]["volumes"] = [volume for volume in each["spec"]["volumes"] if volume["name"] != "keys"]
        assert pods[0] == pods[1]


def test_the_data_service_is_started_with_options_that_it_has(objects, templates):
    from tfdist.data_service.command import parser

    documents = objects("data-service.yaml")
    services = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Service"}
    dispatcher = parser().parse_args(container(pod(templates, documents, "dispatcher"))["args"])
    template = pod(templates, documents, "preprocessor")
    words = [word.replace("$(POD_NAME)", "train-preprocessor-0") for word in container(template)["args"]]
    worker = parser().parse_args(words)
    assert dispatcher.host in services
    assert worker.dispatcher == f"{dispatcher.host}:{dispatcher.port}"
    assert worker.host == "train-preprocessor-0.train-preprocessor"
    assert services["train-preprocessor"]["publishNotReadyAddresses"] is True
    assert worker.port == dispatcher.port == 5050 and worker.insecure and dispatcher.insecure
    assert template["spec"]["terminationGracePeriodSeconds"] > worker.drain_timeout
    assert (template["spec"]["containers"][0]["env"][0]["valueFrom"]) == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_there_is_no_secret_in_the_manifests(manifest):
    assert not [document for document in manifest if document["kind"] == "Secret"]
    assert not re.search(
        r"PRIVATE KEY|ssh-(ed25519|rsa) |ecdsa-|LS0tLS1C|password", json.dumps(manifest), re.IGNORECASE
    )
