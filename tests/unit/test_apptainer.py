"""docker/apptainer.def as far as it can be read: Apptainer itself has not run it."""

import re
from pathlib import Path

DOCKER = Path(__file__).resolve().parents[2] / "docker"
TEXT = (DOCKER / "apptainer.def").read_text()
SECTIONS = {"help", "environment", "runscript", "test"}


def sections():
    """The header's fields, and the text of each section by its name."""
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    first = next(index for index, line in enumerate(lines) if line.startswith("%"))
    header = dict(line.split(": ", 1) for line in lines[:first] if line)
    body = re.split(r"^%(\w+)\n", "\n".join(lines[first:]), flags=re.MULTILINE)[1:]
    return header, dict(zip(body[::2], body[1::2], strict=True))


def test_starts_from_a_target_of_the_dockerfile():
    header, parts = sections()
    name, _, target = header.pop("From").partition(":")
    assert header == {"Bootstrap": "docker-daemon"}
    assert name == "tfdist"
    assert re.search(rf"^FROM .* AS {target}$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert parts.keys() == SECTIONS


def test_runs_what_the_image_would():
    _, parts = sections()
    (default,) = re.findall(r'^CMD \["tfdist", "(\w+)"\]$', (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert f"set -- tfdist {default}" in parts["runscript"]
    assert 'exec "$@"' in parts["runscript"]


def test_says_that_it_has_not_been_run():
    assert "Not run" in TEXT.partition("Bootstrap")[0]
    assert "has not been run" in (DOCKER / "README.md").read_text().partition("apptainer.def")[2]
