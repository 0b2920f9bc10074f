"""`docker compose build` as compose/README.md has it."""

import json

import pytest

NAMES = {"CPU_IMAGE": "tfdist-test/by-compose:cpu", "DATA_SERVICE_IMAGE": "tfdist-test/by-compose:data-service"}
SERVICES = {"train.yaml": ("worker", "launcher"), "data-service.yaml": ("dispatcher", "preprocessor", "trainer")}
BUILD_SECONDS = 3600


@pytest.fixture(scope="module", autouse=True)
def removed(docker):
    yield
    docker("image", "rm", *NAMES.values(), check=False)  # the second is not there where the first failed


@pytest.fixture
def overlay(secrets, tmp_path):
    """What pip needs on this machine, as a file that is laid over one of compose/."""

    def write(services):
        kept = {name: {"file": file} for name, file in secrets.items()}
        text = {"services": {name: {"build": {"secrets": list(secrets)}} for name in services}, "secrets": kept}
        path = tmp_path / "secrets.json"
        path.write_text(json.dumps(text))
        return path

    return write


def layers(docker, image):
    """Those below the last one, which has tfdist itself."""
    (told,) = json.loads(docker("image", "inspect", image).stdout)
    return told["RootFS"]["Layers"][:-1]


@pytest.mark.parametrize("file", SERVICES)
def test_the_images_are_those_of_the_command(project, docker, images, overlay, file):
    job = project(file, **NAMES)
    job("--file", str(overlay(SERVICES[file])), "build", check=True, timeout=BUILD_SECONDS)
    assert layers(docker, NAMES["CPU_IMAGE"]) == layers(docker, images["cpu"])
    if file == "data-service.yaml":
        assert layers(docker, NAMES["DATA_SERVICE_IMAGE"]) == layers(docker, images["data-service"])
