"""docker/kubernetes/keys.sh: what it prints is what the manifests mount, and nothing else is left of it."""

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "kubernetes" / "keys.sh"
NAMES = ["host_key", "host_key.pub", "launcher_key", "launcher_key.pub"]


@pytest.fixture
def keys(tmp_path):
    """Runs the script with a folder of its own for temporary files."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen; on Debian: apt-get install openssh-client")

    def run(*words):
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        return subprocess.run([SCRIPT, *words], env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_prints_a_secret_with_two_pairs(keys, problems, tmp_path):
    done = keys("train-keys")
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


def test_each_call_makes_new_keys_and_leaves_none_behind(keys, tmp_path):
    first, second = (yaml.safe_load(keys("train-keys").stdout)["data"] for _ in range(2))
    assert all(first[name] != second[name] for name in NAMES)
    assert list(tmp_path.iterdir()) == []


def test_has_what_the_manifest_mounts(keys, objects, templates):
    made = yaml.safe_load(keys("train-keys").stdout)["data"].keys()
    mounted = {
        item["key"]
        for _, template in templates(objects("train.yaml"))
        for volume in template["spec"]["volumes"]
        for item in volume.get("secret", {"items": ()})["items"]
    }
    assert mounted == made


@pytest.mark.parametrize("words", [(), ("a", "b"), ("Train",), ("a\nb: c",), ("-a",)])
def test_a_name_that_is_none_is_refused(keys, words):
    done = keys(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected the name of the Secret" in done.stderr
