"""docker/rdma.Dockerfile, and what docs/containers.md says about capabilities; there is no such card in the tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = "import ctypes; print(*(ctypes.CDLL(name)._name for name in ('libibverbs.so.1', 'librdmacm.so.1')))"
EFFECTIVE = ("sh", "-c", "grep CapEff /proc/self/status")
IPC_LOCK = 1 << 14


@pytest.fixture(scope="module")
def image(docker, images):
    name = "tfdist-test/tfdist:rdma"
    file = str(ROOT / "docker" / "rdma.Dockerfile")
    docker("build", "--file", file, "--build-arg", f"IMAGE={images['cpu']}", "--tag", name, str(ROOT), timeout=600)
    yield name
    docker("image", "rm", name)


def test_the_layer_brings_the_libraries_and_leaves_the_user(docker, images, image):
    assert docker("run", "--rm", images["cpu"], "python", "-c", LIBRARIES, check=False).returncode != 0
    assert docker.run(image, "python", "-c", LIBRARIES).split() == ["libibverbs.so.1", "librdmacm.so.1"]
    assert docker.run(image, "id", "-un").strip() == "tfdist"
    drivers = docker.run(image, "sh", "-c", "ls /usr/lib/*/libibverbs")
    assert "libmlx5" in drivers


def test_a_capability_that_is_added_is_in_effect_for_root_alone(docker, images):
    def effective(*options):
        told = docker.run(images["cpu"], *EFFECTIVE, options=("--cap-drop", "ALL", "--cap-add", "IPC_LOCK", *options))
        return int(told.split()[1], 16)

    assert effective("--user", "0") == IPC_LOCK
    assert effective() == 0
