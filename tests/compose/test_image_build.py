"""`tfdist image build` with a real engine: the layers of a plain build, a file that loads, a base that is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import root_image

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 3600
SCIKIT_LEARN = "scikit-learn==1.9.1"  # as the other images of the tests have it
NAME = "tfdist-test/by-command:cpu"


@pytest.fixture(scope="module")
def begin(docker, versions):
    """The base that is named by default is here under that name, where it cannot be pulled too."""
    found = root_image.provide(docker, versions["BASE_IMAGE"])
    if found != versions["BASE_IMAGE"]:
        docker("tag", found, versions["BASE_IMAGE"])
    yield versions["BASE_IMAGE"]
    if found != versions["BASE_IMAGE"]:
        docker("image", "rm", versions["BASE_IMAGE"])


@pytest.fixture(scope="module")
def image_build(docker, secrets, begin, tmp_path_factory):
    """Runs the command with the options that this machine needs."""
    commands = tmp_path_factory.mktemp("commands")
    (commands / "docker").symlink_to(docker.client)
    names = {"pip.conf": "--pip-config", "ca.pem": "--ca"}
    given = [re.fullmatch("id=(.+),src=(.+)", word).groups() for word in secrets if word != "--secret"]
    options = [word for name, file in given for word in (names[name], file)]
    environment = os.environ | docker.variables | {"PATH": f"{commands}:{os.environ['PATH']}"}

    def run(*words):
        command = [sys.executable, "-m", "tfdist.command", "image", "build", "--source", str(ROOT), *options, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)

    return run


@pytest.fixture(scope="module")
def built(docker, images, image_build, tmp_path_factory):
    """What the command said, and the file that it saved; its image is gone afterwards."""
    file = tmp_path_factory.mktemp("saved") / "image.tar"
    done = image_build("--extra-packages", SCIKIT_LEARN, "--tag", NAME, "--save", str(file))
    assert done.returncode == 0, done.stderr[-8000:]
    yield done, file
    docker("image", "rm", NAME, check=False)  # a load that failed leaves none


def inspect(docker, name):
    (told,) = json.loads(docker("image", "inspect", name).stdout)
    return told


def test_the_layers_are_those_of_a_plain_build(docker, images, built):
    plain, made = (inspect(docker, name)["RootFS"]["Layers"] for name in (images["cpu"], NAME))
    assert made[:-1] == plain[:-1]  # the last has tfdist itself


def test_the_table_tells_its_size_and_what_it_is_made_of(docker, versions, built):
    done, _ = built
    size = inspect(docker, NAME)["Size"] / (1 << 20)
    line = next(line for line in done.stdout.splitlines() if line.startswith(f"{NAME} "))
    assert f" {size:,.0f} MiB " in line
    assert f"TensorFlow {versions['TENSORFLOW_VERSION']}, Keras {versions['KERAS_VERSION']}, " in line
    assert done.stdout.splitlines()[-1] == f"try it: docker run --rm {NAME}"


def test_the_label_is_the_commit(docker, built):
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    label = inspect(docker, NAME)["Config"]["Labels"]["org.opencontainers.image.revision"]
    assert label.removesuffix("-dirty") == commit


def test_what_was_saved_loads_and_runs(docker, built):
    _, file = built
    docker("image", "rm", NAME)
    assert NAME in docker("load", "--input", str(file)).stdout
    assert docker.run(NAME, "python", "-c", "import tfdist; print(tfdist.__version__)").strip()


def test_a_base_with_another_python_is_refused_before_packages_come(image_build, begin):
    done = image_build("--base-image", begin, "--python", "3.12", "--tag", "tfdist-test/never:cpu")
    assert done.returncode == 1
    assert "the base image has Python 3.11, and EXPECTED_PYTHON is 3.12" in done.stderr
    assert done.stderr.splitlines()[-1] == "What to do: give the --python that --base-image has."
    assert "Collecting tensorflow" not in done.stderr
