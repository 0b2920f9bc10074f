"""The engine through the real SDK: what is asked of it, and what its faults become."""

from __future__ import annotations

import base64
import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.image import engine as subject
from tfdist.command.image.failure import ImageError
from tfdist.command.image.progress import Progress

NAME = "registry.example.org/team/tfdist:cpu"


@pytest.fixture
def connected(engine: Any) -> Any:
    engine.images.append(NAME)
    made = subject.connect()
    yield made
    made.close()


def test_size(connected: Any, engine: Any) -> None:
    assert connected.size(engine.identity) == 3 << 20


def test_an_image_that_another_builder_kept(connected: Any, engine: Any) -> None:
    engine.images.clear()
    with pytest.raises(ImageError) as told:
        connected.size(engine.identity)
    for text in (engine.identity, engine.address.replace("tcp", "http"), "docker buildx use default", "DOCKER_HOST"):
        assert text in str(told.value)


def test_saved_under_its_first_name(connected: Any, engine: Any, tmp_path: Path) -> None:
    connected.save(NAME, 3 << 20, tmp_path / "image.tar")
    assert (tmp_path / "image.tar").read_bytes() == engine.archive
    assert ("GET", f"/images/{NAME}/get") in engine.asked
    assert list(tmp_path.glob(".*")) == []


def test_a_connection_lost_while_saving_leaves_the_old_file(connected: Any, engine: Any, tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    file.write_text("old")
    engine.cut = True
    with pytest.raises(ImageError, match=f"{NAME} was built, but not saved as {file}: "):
        connected.save(NAME, 3 << 20, file)
    assert file.read_text() == "old"
    assert list(tmp_path.glob(".*")) == []


def test_an_engine_that_refuses_to_save(connected: Any, engine: Any, tmp_path: Path) -> None:
    engine.images.remove(NAME)
    with pytest.raises(ImageError, match=r"not saved as .*No such image"):
        connected.save(NAME, 3 << 20, tmp_path / "image.tar")
    assert not (tmp_path / "image.tar").exists()


def test_a_full_disk_while_saving(connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(subject, "write_atomically", full)
    with pytest.raises(ImageError) as told:
        connected.save(NAME, 3 << 20, tmp_path / "image.tar")
    assert "No space left on device. The file takes about 3 MiB; the image is kept" in str(told.value)
    assert f"docker save --output FILE {NAME}" in str(told.value)


def test_pushed_with_the_login_that_is_stored(engine: Any, tmp_path: Path) -> None:
    (tmp_path / "docker-config").mkdir()
    entry = {"auths": {"registry.example.org": {"auth": base64.b64encode(b"me:secret").decode()}}}
    (tmp_path / "docker-config" / "config.json").write_text(json.dumps(entry))
    made = subject.connect()
    assert made.push(NAME) == engine.digest
    made.close()
    assert engine.asked[-1] == ("POST", "/images/registry.example.org/team/tfdist/push?tag=cpu")
    login = json.loads(base64.urlsafe_b64decode(engine.logins[-1]))
    assert (login["username"], login["password"]) == ("me", "secret")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"errorDetail": {"message": "denied: no access"}, "error": "denied"}, "denied: no access"),
        ({"error": "no basic auth credentials"}, "no basic auth credentials"),
    ],
)
def test_an_error_inside_the_stream_of_a_push_is_one(connected: Any, engine: Any, told: Any, reason: str) -> None:
    engine.pushed = [{"status": "Preparing", "id": "l"}, told]
    with pytest.raises(ImageError) as raised:
        connected.push(NAME)
    assert f"{NAME} was built, but not pushed: {reason}\n" in str(raised.value)
    assert "Log in (docker login registry.example.org), " in str(raised.value)
    with pytest.raises(ImageError, match=r"Log in \(docker login\), .* and try: docker push me/tfdist:cpu"):
        connected.push("me/tfdist:cpu")


@pytest.mark.parametrize("cut", [False, True])
def test_a_push_that_ends_early_is_none(connected: Any, engine: Any, cut: bool) -> None:
    engine.pushed = [{"status": "Pushing", "id": "l", "progressDetail": {"current": 1, "total": 2}}]
    engine.pushed += [{"aux": {"Digest": engine.digest}}] * cut
    engine.cut = cut
    with pytest.raises(ImageError, match=f"{NAME} was built, but not pushed: "):
        connected.push(NAME)


def test_progress_of_a_push_adds_up_its_layers() -> None:
    lines: list[str] = []
    now = [0.0]
    moved = subject.Moved(Progress("pushing", lines.append, lambda: now[0]))
    mebibyte = 1 << 20
    told = [("a", 1, 10), ("b", 2, 20), ("a", 12, 10)]
    for layer, current, total in told:
        now[0] += 3.0
        moved.read({"id": layer, "progressDetail": {"current": current * mebibyte, "total": total * mebibyte}})
        moved.read({"id": "c", "status": "Layer already exists", "progressDetail": {}})
    assert lines == ["  pushing: 1 MiB of 10 MiB", "  pushing: 3 MiB of 30 MiB", "  pushing: 14 MiB of 32 MiB"]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (
            {"Version": "19.03.15", "ApiVersion": "1.40"},
            "is 19.03.15 (API 1.40), and its BuildKit does not know RUN --m",
        ),
        ({"Arch": "arm64"}, "builds for linux/arm64, and the packages of the image are there for linux/amd64 only"),
        ({"Os": "windows"}, "builds for windows/amd64"),
    ],
)
def test_an_engine_that_cannot_build_it(engine: Any, version: dict[str, str], reason: str) -> None:
    engine.version |= version
    with pytest.raises(ImageError) as told:
        subject.connect()
    assert reason in str(told.value)


def test_an_engine_that_emulates(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.version["Arch"] = "arm64"
    monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", "linux/amd64")
    subject.connect().close()


@pytest.mark.usefixtures("engine")
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ImageError) as told:
        subject.connect()
    assert str(told.value).startswith(f"no Docker engine answers at unix://{tmp_path}/none.sock: ")
    assert "systemctl start docker" in str(told.value)


@pytest.mark.usefixtures("engine")
def test_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    import docker

    def denied(**_: object) -> None:
        raise docker.errors.DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))")

    monkeypatch.setattr(docker, "from_env", denied)
    with pytest.raises(ImageError, match=r"may not be used by this user\. Join its group: sudo usermod"):
        subject.connect()


def test_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ImageError, match=r"the Docker SDK for Python is not there .*pip install 'docker>=7\.2'"):
        subject.connect()
