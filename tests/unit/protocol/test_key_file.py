"""Tests of tfdist.protocol.key_file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.protocol import key_file


def test_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b" " + b"k" * 32 + b"\n")
    path.chmod(0o400)
    assert key_file.read(str(path)) == b"k" * 32


def test_command_in_the_messages_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="No such file") as told:
        key_file.read(str(path))
    command = str(told.value).partition("hosts: ")[2]
    folder = os.path.dirname(sys.executable)
    variables = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], check=True, env=variables, timeout=60)
    assert len(key_file.read(str(path))) == 64


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602])
def test_file_that_others_can_use(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        key_file.read(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_group_of_a_mounted_secret(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o440)
    assert key_file.read(str(path)) == b"k" * 32
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="chmod 600"):
        key_file.read(str(path))


@pytest.mark.parametrize("length", [0, 31, 5000])
def test_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * length)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="expected 32 to 4096"):
        key_file.read(str(path))


def test_key_of_this_machine_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = key_file.of_this_machine(folder)
    assert first == key_file.of_this_machine(folder)
    assert [path.name for path in folder.iterdir()] == ["loopback.key"]
    assert (folder / "loopback.key").stat().st_mode & 0o777 == 0o600


def test_key_of_this_machine_by_many_at_once(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tfdist.protocol import key_file; "
    code += "sys.stdout.buffer.write(key_file.of_this_machine(Path(sys.argv[1])))"
    started = [subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) for _ in range(4)]
    assert len({each.communicate(timeout=60)[0] for each in started}) == 1


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="TFDIST_KEY_FILE"):
        key_file.of_this_machine(tmp_path / "file" / "cache")
