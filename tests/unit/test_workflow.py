""".github/workflows/release.yml: it holds GitHub's schema, zizmor finds nothing, its steps are commands of ours."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / ".github" / "workflows" / "release.yml"
JOB = yaml.safe_load(FILE.read_text())["jobs"]["release"]
RUNS = [each["run"] for each in JOB["steps"] if "run" in each]


def told(program, *words):
    """What a linter of this environment says where it finds something."""
    command = [Path(sys.executable).with_name(program), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.fixture
def changed(tmp_path):
    """The file with something else in it."""

    def write(before, after):
        text = FILE.read_text()
        assert before in text
        (tmp_path / "release.yml").write_text(text.replace(before, after))
        return tmp_path / "release.yml"

    return write


SCHEMA = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
SECURITY = ("zizmor", "--offline")


def test_it_holds_the_schema(changed):
    assert told(*SCHEMA, FILE) == ""
    assert "timeout-minuts" in told(*SCHEMA, changed("timeout-minutes", "timeout-minuts"))


def test_nothing_of_it_is_known_to_be_dangerous(changed):
    assert told(*SECURITY, FILE) == ""
    assert "template-injection" in told(
        *SECURITY, changed('"$GITHUB_REF_NAME" --verify', "${{ github.ref_name }} --verify")
    )


def test_actions_of_others_are_fixed():
    used = [each["uses"] for each in JOB["steps"] if "uses" in each]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_the_steps_are_those_of_the_script():
    """In its order, and nothing is published before all that is tested."""
    (known,) = re.findall(r"\^\(([a-z|]+)\)\$", (ROOT / "docker" / "release.sh").read_text())
    assert re.findall(r"release\.sh --only (\w+) ", "\n".join(RUNS)) == known.split("|")
    names = [each["name"] for each in JOB["steps"]]
    published = [names.index(name) for name in ("Publish the images", "Publish the wheels", "Release")]
    assert max(names.index(name) for name in ("Test", "Wheels", "Test the images")) < min(published)


def test_targets_of_make_are_there():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\S+)$", "\n".join(RUNS), re.MULTILINE)
    assert targets == ["setup", "lint", "test"]
    assert [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("command", RUNS)
def test_commands_are_bash(command):
    done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
