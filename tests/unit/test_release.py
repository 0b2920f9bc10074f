"""docker/release.sh in a repository of its own, beside a docker, a make and a tfdist that only tell of their calls."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "release.sh"
NAME = "registry.example/team/tfdist"
BUILDS = [
    f"tfdist image build --target {target} --tag {NAME}:1.2.3-{target}" for target in ("cpu", "cuda", "data-service")
]
TESTS = ["make test-images test-cuda-image", f"make manifests IMAGES={NAME}:1.2.3"]
ALL = [*TESTS, *BUILDS, *(f"{build} --push" for build in BUILDS)]
# It knows the images that the file `published` lists, and fails at the step that the file `fails` names.
PROGRAM = """\
#!/bin/bash
call="$(basename "$0") $*"
if [[ $call == "docker manifest inspect "* ]]; then exec grep -qxF "${call##* }" "$TRACE/published"; fi
echo "$call" >> "$TRACE/calls"
! grep -qxF "$call" "$TRACE/fails"
"""


class Release:
    def __init__(self, folder):
        self.root, self.trace, self.config = (folder / name for name in ("root", "trace", "config"))
        programs = folder / "programs"
        for each in (self.root / "docker", self.trace, self.config, programs):
            each.mkdir(parents=True)
        for name in ("published", "fails", "calls"):
            (self.trace / name).touch()
        for name in ("docker", "make", "tfdist"):
            (programs / name).write_text(PROGRAM)
            (programs / name).chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TRACE": str(self.trace),
            "DOCKER_CONFIG": str(self.config),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
        }
        self.login("registry.example")
        shutil.copy(SCRIPT, self.root / "docker")
        (self.root / "pyproject.toml").write_text('[project]\nname = "tfdist"\nversion = "1.2.3"\n')
        self.git("init", "--quiet")
        self.commit("first")
        self.git("tag", "v1.2.3")

    def git(self, *words):
        own = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
        subprocess.run(["git", *own, *words], cwd=self.root, env=self.environment, check=True, capture_output=True)

    def commit(self, message):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def login(self, *hosts, field="auths"):
        (self.config / "config.json").write_text(json.dumps({field: {host: {} for host in hosts}}))

    def __call__(self, *words, folder=None):
        done = subprocess.run(
            [self.root / "docker" / "release.sh", *words],
            cwd=folder or self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done, (self.trace / "calls").read_text().splitlines()


@pytest.fixture
def release(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("no git; on Debian: apt-get install git")
    return Release(tmp_path)


def test_tests_then_builds_all_then_publishes_all(release):
    done, calls = release(NAME)
    assert done.returncode == 0, done.stderr
    assert calls == ALL


def test_a_dry_run_only_tells(release, tmp_path):
    done, calls = release("--dry-run", NAME, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls == []
    *steps, last = done.stdout.splitlines()
    assert steps == [f"+ {step}" for step in ALL]
    assert last.startswith("attach to the release v1.2.3: build/kubernetes/train.yaml")


@pytest.mark.parametrize("step", [0, 1, 3, 4])
def test_nothing_is_published_where_a_test_or_a_build_fails(release, step):
    (release.trace / "fails").write_text(f"{ALL[step]}\n")
    done, calls = release(NAME)
    assert done.returncode != 0
    assert calls == ALL[: step + 1]


def test_a_tree_with_changes_is_refused(release):
    (release.root / "forgotten.py").write_text("")
    done, calls = release(NAME)
    assert (done.returncode, calls) == (1, [])
    assert "the working tree differs from the tag; commit or remove: ?? forgotten.py" in done.stderr


def test_a_tag_that_is_not_the_version_is_refused(release):
    (release.root / "pyproject.toml").write_text('version = "1.3.0"\n')
    release.commit("a version")
    done, calls = release(NAME)
    assert (done.returncode, calls) == (1, [])
    assert "the version in pyproject.toml is 1.3.0, but HEAD has the tags ''; expected v1.3.0" in done.stderr
    release.git("tag", "v1.3.1")
    assert "HEAD has the tags 'v1.3.1'" in release("--dry-run", NAME)[0].stderr
    release.git("tag", "v1.3.0")  # beside the other
    assert release("--dry-run", NAME)[0].returncode == 0


def test_without_a_login_it_is_refused(release):
    release.login("other.example")
    done, calls = release(NAME)
    assert (done.returncode, calls) == (1, [])
    assert "no login for registry.example; log in first: docker login registry.example" in done.stderr
    (release.config / "config.json").unlink()
    assert "no login for registry.example" in release("--dry-run", NAME)[0].stderr
    release.login("registry.example", field="credHelpers")
    assert release("--dry-run", NAME)[0].returncode == 0


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("team/tfdist", "https://index.docker.io/v1/"),
        ("localhost/tfdist", "localhost"),
        ("localhost:5000/tfdist", "localhost:5000"),
        ("a.example/b/c/tfdist", "a.example"),
    ],
)
def test_the_login_is_that_of_the_names_registry(release, name, host):
    assert "no login for" in release("--dry-run", name)[0].stderr
    release.login(host)
    assert release("--dry-run", name)[0].returncode == 0


def test_a_version_that_is_published_stays_as_it_is(release):
    (release.trace / "published").write_text(f"{NAME}:1.2.3-cuda\n")
    done, calls = release(NAME)
    assert (done.returncode, calls) == (1, [])
    assert f"{NAME}:1.2.3-cuda is already published" in done.stderr


@pytest.mark.parametrize("words", [(), (NAME, "more"), ("--push", NAME), ("Team/tfdist",), ("a b",), ("",)])
def test_other_words_are_refused(release, words):
    done, calls = release(*words)
    assert (done.returncode, calls) == (1, [])
    assert "expected the target of the images" in done.stderr
