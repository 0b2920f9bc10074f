"""`tfdist image build` with a real engine: the layers of a plain build, a file that loads, a base that is refused."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 3600
SCIKIT_LEARN = "scikit-learn==1.9.1"  # as the other images of the tests have it
NAME = "tfdist-test/by-command:cpu"
PLAIN = "tfdist-test/plain:cpu"


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


def test_the_layers_are_those_of_a_plain_build(docker, images, secrets):
    given = [word for name, file in secrets.items() for word in ("--secret", f"id={name},src={file}")]
    words = ("--target", "cpu", "--tag", PLAIN, "--build-arg", f"EXTRA_PACKAGES={SCIKIT_LEARN}", *given)
    docker("build", "--file", str(ROOT / "docker" / "Dockerfile"), *words, str(ROOT), timeout=BUILD_SECONDS)
    plain, made = (inspect(docker, name)["RootFS"]["Layers"] for name in (PLAIN, images["cpu"]))
    docker("image", "rm", PLAIN)
    assert made[:-1] == plain[:-1]  # the last has tfdist itself


def test_size_releases_and_commit_are_told(docker, versions, built):
    done, _ = built
    told = inspect(docker, NAME)
    assert done.stdout.startswith(f"{NAME}: {told['Size'] / (1 << 20):,.0f} MiB, ")
    assert f"TensorFlow {versions['TENSORFLOW_VERSION']}, Keras {versions['KERAS_VERSION']}, " in done.stdout
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert told["Config"]["Labels"]["org.opencontainers.image.revision"].removesuffix("-dirty") == commit


def test_what_was_saved_loads_and_runs(docker, built):
    _, file = built
    docker("image", "rm", NAME)
    assert NAME in docker("load", "--input", str(file)).stdout
    assert docker.run(NAME, "python", "-c", "import tfdist; print(tfdist.__version__)").strip()


def test_base_with_another_python_is_refused_early(image_build, begin):
    done = image_build("--base-image", begin, "--python", "3.12", "--tag", "tfdist-test/never:cpu")
    assert done.returncode == 1
    assert "the base image has Python 3.11, not 3.12; give it as --python 3.11" in done.stderr
    assert "Collecting tensorflow" not in done.stderr
