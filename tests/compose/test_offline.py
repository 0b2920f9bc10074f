"""A job from one file of images, where nothing can be pulled: as docs/containers.md does it without a network."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCIKIT_LEARN = "scikit-learn==1.9.1"  # as the other images of the tests have it
TARGETS = ("cpu", "data-service")
NAME = "tfdist-test/carried:{target}"
# Containers reach each other on such a network, and nobody else.
NOWHERE = "networks:\n  default:\n    internal: true\n"


@pytest.fixture(scope="module")
def carried(docker, images, image_build, tmp_path_factory):
    """The names of images that were built, saved, removed and loaded again."""
    file = tmp_path_factory.mktemp("carried") / "images.tar"
    words = [word for target in TARGETS for word in ("--target", target)]
    done = image_build(*words, "--extra-packages", SCIKIT_LEARN, "--tag", NAME, "--save", str(file))
    assert done.returncode == 0, done.stderr[-8000:]
    names = {target: NAME.replace("{target}", target) for target in TARGETS}
    # The file has what they share once; the engine counts it for each.
    sizes = [int(docker("image", "inspect", "--format", "{{.Size}}", name).stdout) for name in names.values()]
    assert file.stat().st_size < 0.8 * sum(sizes)
    docker("image", "rm", *names.values())
    said = docker("load", "--input", str(file)).stdout
    assert all(name in said for name in names.values())
    yield names
    docker("image", "rm", *names.values())


def test_a_job_of_compose_from_the_file(docker, project, carried, tmp_path):
    (tmp_path / "nowhere.yaml").write_text(NOWHERE)
    variables = {"CPU_IMAGE": carried["cpu"], "DATA_SERVICE_IMAGE": carried["data-service"]}
    job = project("train.yaml", COMMAND="python digits.py --output /checkpoints --epochs 12", **variables)
    words = ("--file", str(tmp_path / "nowhere.yaml"), "up", "--no-build", "--pull", "never")
    done = job(*words, "--exit-code-from", "launcher")
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert float(re.findall(r"\| \[0\] validation accuracy: ([\d.]+)", log)[-1]) > 0.95
    assert docker("network", "inspect", "--format", "{{.Internal}}", f"{job.name}_default").stdout.strip() == "true"


def test_an_image_that_is_not_in_the_file_is_an_error(project):
    job = project("train.yaml", CPU_IMAGE="tfdist-test/not-there:cpu")
    done = job("up", "--no-build", "--pull", "never", "--exit-code-from", "launcher")
    assert done.returncode != 0
    assert "tfdist-test/not-there:cpu" in done.stderr and "Pulling" not in done.stderr
