"""docker/release.sh in a repository of its own, beside a docker, a make and a tfdist that only tell of their calls."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "release.sh"
NAME = "registry.example/team/tfdist"
TARGETS = ("cpu", "cuda", "data-service")
PLACE = "build/release/1.2.3"
BUILD = f"tfdist image build --tag {NAME}:1.2.3-{{target}} --target cpu --target cuda --target data-service"
STEPS = {
    "wheels": ["make test-wheel", "make wheels MACHINE=aarch64"],
    "test": ["make test-images test-cuda-image"],
    "images": [
        f"make manifests IMAGES={NAME}:1.2.3",
        BUILD,
        *(f"docker run --rm --entrypoint cat {NAME}:1.2.3-{each} /opt/tfdist/sbom.cdx.json" for each in TARGETS),
    ],
    "publish": [f"{BUILD} --push"],
}
ALL = [call for calls in STEPS.values() for call in calls]
SIGN = [
    *(
        call
        for each in TARGETS
        for call in (
            f"cosign sign --yes {NAME}@sha256:{each}",
            f"cosign attest --yes --type cyclonedx --predicate {PLACE}/sbom-{each}.cdx.json {NAME}@sha256:{each}",
        )
    ),
    f"cosign sign-blob --yes --bundle {PLACE}/SHA256SUMS.sigstore.json {PLACE}/SHA256SUMS",
]
MANIFESTS = ("train.yaml", "mpijob.yaml", "trainjob.yaml", "data-service.yaml")
# It knows the images that the file `published` lists, and fails at the step that the file `fails` names.
PROGRAM = """\
#!/bin/bash
call="$(basename "$0") $*"
if [[ $call == "docker manifest inspect "* ]]; then exec grep -qxF "${call##* }" "$TRACE/published"; fi
if [[ $call == "docker image inspect "* ]]; then
  name=${call##* }
  printf '%s\\n' "elsewhere.example/x@sha256:0" "${name%:*}@sha256:${name#*1.2.3-}"
  exit
fi
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
        for name in ("docker", "make", "tfdist", "cosign"):
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
        (self.root / ".gitignore").write_text("build/\ndist/\n")
        made = [self.root / "dist" / f"tfdist-1.2.3-{kind}.whl" for kind in ("x86_64", "aarch64")]
        made += [self.root / "dist" / "tfdist-1.2.2-x86_64.whl"]
        made += [self.root / "build" / "kubernetes" / name for name in MANIFESTS]
        (self.root / "docker" / "kubernetes").mkdir()
        for file in (*made, self.root / "docker" / "kubernetes" / "keys.sh"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(file.name)
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


def test_builds_and_tests_all_then_publishes_all(release):
    done, calls = release(NAME)
    assert done.returncode == 0, done.stderr
    assert calls == ALL
    assert done.stdout.endswith(f"what belongs to the release v1.2.3: {PLACE}\n")
    folder = release.root / PLACE
    digests = {(folder / f"image-{each}.txt").read_text() for each in TARGETS}
    assert digests == {f"{NAME}@sha256:{each}\n" for each in TARGETS}
    listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == {
        *("tfdist-1.2.3-x86_64.whl", "tfdist-1.2.3-aarch64.whl", "keys.sh", *MANIFESTS),
        *(f"sbom-{each}.cdx.json" for each in TARGETS),
        *(f"image-{each}.txt" for each in TARGETS),
    }
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True, timeout=60)


def test_a_dry_run_only_tells(release, tmp_path):
    done, calls = release("--dry-run", NAME, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls == []
    told = [line.removeprefix("+ ").partition(" > ")[0] for line in done.stdout.splitlines()]
    assert [line for line in told if line in ALL] == ALL
    assert not (release.root / PLACE).exists()


@pytest.mark.parametrize("step", STEPS)
def test_one_step_alone(release, step):
    done, calls = release("--only", step, NAME)
    assert done.returncode == 0, done.stderr
    assert calls == STEPS[step]


def test_options_of_the_build_come_after_two_dashes(release):
    done, calls = release("--only", "images", NAME, "--", "--ca", "a b.pem")
    assert done.returncode == 0, done.stderr
    assert [call for call in calls if call.startswith("tfdist image build")] == [
        BUILD.replace("image build", "image build --ca a b.pem")
    ]


def test_signs_what_was_published(release):
    done, calls = release("--only", "sign", NAME)
    assert (done.returncode, calls) == (1, [])
    assert f"{PLACE} has no image-cpu.txt; publish first: --only publish" in done.stderr
    assert release(NAME)[0].returncode == 0
    (release.trace / "published").write_text(f"{NAME}:1.2.3-cuda\n")
    done, calls = release("--only", "sign", NAME)
    assert done.returncode == 0, done.stderr
    assert calls[len(ALL) :] == SIGN


@pytest.mark.parametrize("step", [0, 2, 4, 5])
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
        ("registry.example:5000/tfdist", "registry.example:5000"),
        ("a.example/b/c/tfdist", "a.example"),
    ],
)
def test_the_login_is_that_of_the_names_registry(release, name, host):
    assert "no login for" in release("--dry-run", name)[0].stderr
    release.login(host)
    assert release("--dry-run", name)[0].returncode == 0


def test_a_registry_of_this_machine_needs_no_login(release):
    (release.config / "config.json").unlink()
    assert release("--dry-run", "localhost:5000/tfdist")[0].returncode == 0


def test_a_version_that_is_published_stays_as_it_is(release):
    (release.trace / "published").write_text(f"{NAME}:1.2.3-cuda\n")
    done, calls = release(NAME)
    assert (done.returncode, calls) == (1, [])
    assert f"{NAME}:1.2.3-cuda is already published" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *((words, "the target of the images") for words in ((), (NAME, "more"), ("Team/tfdist",), ("a b",), ("",))),
        (("--push", NAME), "--dry-run or --only STEP"),
        (("--only", NAME), "one of: wheels, test, images, publish, sign"),
    ],
)
def test_other_words_are_refused(release, words, expected):
    done, calls = release(*words)
    assert (done.returncode, calls) == (1, [])
    assert f"expected {expected}" in done.stderr
