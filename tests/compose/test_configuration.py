"""The files of compose/ as compose understands them; nothing is started."""

import json
import re
from pathlib import Path

import pytest

from tfdist.launch.option import option

FOLDER = Path(__file__).resolve().parents[2] / "compose"
FILES = ("train.yaml", "mpi.yaml", "elastic.yaml", "data-service.yaml")


@pytest.fixture
def understood(docker):
    """What compose makes of several files together, with variables as a user's shell would set them."""

    def ask(*files, **variables):
        words = [word for file in files for word in ("--file", str(FOLDER / file))]
        return json.loads(docker("compose", *words, "config", "--format", "json", variables=variables).stdout)

    return ask


@pytest.mark.parametrize("file", ["train.yaml", "mpi.yaml", "elastic.yaml"])
def test_gpu_worker_gets_gpus_memlock_and_cuda_image(understood, file):
    services = understood(file, "gpu.yaml", WORKERS="1", SLOTS="4")["services"]
    worker, launcher = services["worker"], services["launcher"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])
    assert worker["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert int(worker["shm_size"]) == 8 << 30
    assert worker["image"] == launcher["image"] == "tfdist:cuda"
    assert worker["build"]["target"] == launcher["build"]["target"] == "cuda"
    assert worker["scale"] == 1
    assert launcher["environment"]["SLOTS"] == "4"
    assert "resources" not in launcher.get("deploy", {})


@pytest.mark.parametrize("file", FILES)
def test_every_container_is_confined(understood, file):
    for name, service in understood(file)["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("ports"), name
        assert not service.get("privileged"), name


def test_the_data_service_cannot_be_reached_from_outside(understood):
    told = understood("data-service.yaml")
    assert [network["internal"] for network in told["networks"].values()] == [True]


@pytest.mark.parametrize("file", FILES)
def test_every_variable_has_a_default_and_no_default_is_unused(file):
    defaults = set(re.findall(r"^(\w+)=", (FOLDER / ".env").read_text(), re.MULTILINE))
    used = {name for path in FOLDER.glob("*.yaml") for name in re.findall(r"\$\{(\w+)\}", path.read_text())}
    passed = set(re.findall(r"^ +(\w+):$", (FOLDER / file).read_text(), re.MULTILINE))
    assert used <= defaults
    assert defaults <= used | {"WORKER_TIMEOUT", "LAUNCH_OPTIONS", "SLOTS", "ELASTIC_OPTIONS"} | passed


def test_mpi_is_train_with_ssh_and_its_keys(understood):
    with_mpi, train = understood("mpi.yaml"), understood("train.yaml")
    assert with_mpi["name"] == train["name"]
    keys = with_mpi["volumes"].pop("host-keys")
    assert with_mpi["volumes"] == train["volumes"]
    assert keys["driver_opts"] == train["volumes"]["launcher-key"]["driver_opts"]
    for name, folder in (("worker", "/run/tfdist/own"), ("launcher", "/var/lib/tfdist/.ssh")):
        service, other = with_mpi["services"][name], train["services"][name]
        (added,) = (each for each in service["volumes"] if each not in other["volumes"])
        assert (added["target"], added.get("read_only", False)) == ("/run/tfdist/workers", name == "launcher")
        service["volumes"].remove(added)
        (memory,) = set(service["tmpfs"]) - set(other["tmpfs"])
        assert memory.startswith(f"{folder}:uid=1000,gid=1000,mode=0700")
        service["tmpfs"].remove(memory)
        service["volumes"].sort(key=str)
        other["volumes"].sort(key=str)
    worker, launcher = (with_mpi["services"][name] for name in ("worker", "launcher"))
    assert (worker.pop("command"), worker.pop("healthcheck")["test"][-1]) == (
        ["tfdist-worker"],
        "/run/tfdist/own/sshd.pid",
    )
    assert launcher["environment"].pop("AGENTS_PORT") == ""
    assert train["services"]["worker"].pop("command") == ["tfdist-agent"]
    assert train["services"]["worker"].pop("healthcheck")["test"][-1] == "/tmp/tfdist-agent"
    assert train["services"]["launcher"]["environment"].pop("AGENTS_PORT") == "4000"
    assert with_mpi["services"] == train["services"]


def test_elastic_extends_train_with_command_and_restart(understood):
    services, others = (understood(file)["services"] for file in ("elastic.yaml", "train.yaml"))
    assert (
        services["launcher"].pop("command")
        == "tfdist-launcher python digits.py --elastic --output /checkpoints".split()
    )
    options = services["launcher"]["environment"].pop("ELASTIC_OPTIONS")
    known, command = option.parse(["-np", "2", "--host-discovery-script", "hosts", *options.split(), "true"])
    assert (option.least(known), command) == (1, ["true"])
    assert services["worker"].pop("restart") == "on-failure"
    assert services["worker"].pop("stop_grace_period") == "30s"
    del others["launcher"]["command"], others["worker"]["stop_grace_period"]
    assert services == others


def test_the_shell_wins_over_the_defaults(understood, tmp_path):
    told = understood("train.yaml", CODE=str(tmp_path), COMMAND="python 'my script.py' --lr 1", WORKERS="5")
    assert told["services"]["launcher"]["command"] == ["tfdist-launcher", "python", "my script.py", "--lr", "1"]
    assert told["services"]["worker"]["scale"] == 5
    assert str(tmp_path) in [volume["source"] for volume in told["services"]["worker"]["volumes"]]
