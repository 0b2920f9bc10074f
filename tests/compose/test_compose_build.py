"""`docker compose build` as compose/README.md has it. It takes buildx, which `docker build` does not."""

import json

import pytest
import root_image

NAMES = {"CPU_IMAGE": "tfdist-test/by-compose:cpu", "DATA_SERVICE_IMAGE": "tfdist-test/by-compose:data-service"}
SERVICES = {"train.yaml": ("worker", "launcher"), "data-service.yaml": ("dispatcher", "preprocessor", "trainer")}
BUILD_SECONDS = 3600


@pytest.fixture(scope="module")
def begin(docker, images, versions):
    if docker("buildx", "version", check=False).returncode != 0:
        pytest.skip("docker has no buildx; on Debian 13: apt-get install docker-buildx")
    yield root_image.provide(docker, versions["BASE_IMAGE"])
    docker("image", "rm", *NAMES.values(), check=False)  # the second is not there where the first failed


@pytest.fixture
def overlay(secrets, tmp_path):
    """What pip needs on this machine, as a file that is laid over one of compose/."""
    files = dict(word.removeprefix("id=").split(",src=") for word in secrets if word != "--secret")

    def write(services):
        build = {"build": {"secrets": list(files)}}
        kept = {name: {"file": file} for name, file in files.items()}
        text = {"services": dict.fromkeys(services, build), "secrets": kept}
        path = tmp_path / "secrets.json"
        path.write_text(json.dumps(text))
        return path

    return write


def layers(docker, image):
    (told,) = json.loads(docker("image", "inspect", image).stdout)
    return told["RootFS"]["Layers"]


@pytest.mark.parametrize("file", SERVICES)
def test_the_images_are_those_of_a_plain_build(project, docker, images, begin, overlay, file):
    job = project(file, BASE_IMAGE=begin, **NAMES)
    job("--file", str(overlay(SERVICES[file])), "build", check=True, timeout=BUILD_SECONDS)
    assert layers(docker, NAMES["CPU_IMAGE"]) == layers(docker, images["cpu"])
    if file == "data-service.yaml":
        assert layers(docker, NAMES["DATA_SERVICE_IMAGE"]) == layers(docker, images["data-service"])
