"""docker/kubernetes/keys.sh: what it prints is what the manifests mount, and nothing else is left of it."""

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tfdist.protocol import key_file

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "kubernetes" / "keys.sh"
NAMES = ["host_key", "host_key.pub", "launcher_key", "launcher_key.pub"]


@pytest.fixture
def keys(tmp_path):
    """Runs the script with a folder of its own for temporary files."""

    def run(*words):
        if "--ssh" in words and shutil.which("ssh-keygen") is None:
            pytest.skip("no ssh-keygen; on Debian: apt-get install openssh-client")
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        return subprocess.run([SCRIPT, *words], env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_prints_a_secret_with_a_key_that_agents_take(keys, problems, tmp_path):
    done = keys("train-keys")
    assert done.returncode == 0, done.stderr
    (secret,) = yaml.safe_load_all(done.stdout)
    assert problems(secret) == []
    assert secret["metadata"]["name"] == "train-keys"
    (tmp_path / "job_key").touch(mode=0o600)
    (tmp_path / "job_key").write_bytes(base64.b64decode(secret["data"]["job_key"], validate=True))
    assert len(bytes.fromhex(key_file.read(str(tmp_path / "job_key"), "JOB_KEY").decode())) == 32


def test_prints_a_secret_with_two_pairs(keys, problems, tmp_path):
    done = keys("--ssh", "train-keys")
    assert done.returncode == 0, done.stderr
    (secret,) = yaml.safe_load_all(done.stdout)
    assert problems(secret) == []
    assert secret["metadata"]["name"] == "train-keys"
    assert sorted(secret["data"]) == NAMES
    data = {name: base64.b64decode(text, validate=True) for name, text in secret["data"].items()}
    for name in ("host_key", "launcher_key"):
        (tmp_path / name).write_bytes(data[name])
        (tmp_path / name).chmod(0o600)
        told = subprocess.run(["ssh-keygen", "-y", "-f", tmp_path / name], capture_output=True, check=True).stdout
        assert told.split()[:2] == data[f"{name}.pub"].split()[:2]
    assert data["host_key.pub"] != data["launcher_key.pub"]


@pytest.mark.parametrize(("words", "names"), [((), ["job_key"]), (("--ssh",), NAMES)], ids=["agents", "ssh"])
def test_each_call_makes_new_keys_and_leaves_none_behind(keys, tmp_path, words, names):
    first, second = (yaml.safe_load(keys(*words, "train-keys").stdout)["data"] for _ in range(2))
    assert all(first[name] != second[name] for name in names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ssh", ["true", "false"], ids=["ssh", "agents"])
def test_has_what_the_manifest_mounts(keys, rendered, templates, ssh):
    made = yaml.safe_load(keys(*(["--ssh"] if ssh == "true" else []), "train-keys").stdout)["data"].keys()
    mounted = {
        item["key"]
        for _, template in templates(rendered("--set", f"train.ssh={ssh}"))
        for volume in template["spec"]["volumes"]
        for item in volume.get("secret", {"items": ()})["items"]
    }
    assert mounted == made


@pytest.mark.parametrize("words", [(), ("a", "b"), ("--ssh",), ("Train",), ("a\nb: c",), ("-a",)])
def test_a_name_that_is_none_is_refused(keys, words):
    done = keys(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected the name of the Secret" in done.stderr
