"""Tests of tfdist.protocol.key_file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.protocol import key_file

KEY = b"0123456789abcdef" * 2


def _file(folder: Path, mode: int = 0o600, content: bytes = KEY) -> str:
    path = folder / "job.key"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_content_without_what_is_around_it(tmp_path: Path, mode: int) -> None:
    assert key_file.read(_file(tmp_path, mode, b"\n " + KEY + b" \r\n"), "--key-file") == KEY


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o602, 0o610, 0o666])
def test_others_may_have_it(tmp_path: Path, mode: int) -> None:
    path = _file(tmp_path, mode)
    with pytest.raises(
        ConfigError, match=rf"--key-file \S+: others may have access to it \(mode 0\d+\): chmod 600 {path}"
    ):
        key_file.read(path, "--key-file")


def test_group_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may read what root or this user owns, as a Secret of Kubernetes; else its owner chose the group."""
    path = _file(tmp_path, 0o440)
    about = os.stat(path)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((about.st_mode, 0, 0, 1, 4711, 0, 64, 0, 0, 0)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="chmod 600"):
        key_file.read(path, "--key-file")
    assert stat.S_ISREG(about.st_mode)


def test_too_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 31 bytes; expected 32 to 4096. Make one, .*: \(umask 077; ") as raised:
        key_file.read(_file(tmp_path, content=KEY[:31] + b"\n" * 9), "--key-file")
    assert KEY[:31].decode() not in str(raised.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no such file. Make one, and copy it to every host, .*token_hex\(32\).* > .*/none\)"
    ):
        key_file.read(str(tmp_path / "none"), "--key-file")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        key_file.read(str(tmp_path), "--key-file")
    with pytest.raises(ConfigError, match="not a file"):
        key_file.read("/dev/null", "--key-file")


def test_command_in_the_messages_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="no such file") as told:
        key_file.read(str(path), "--key-file")
    command = str(told.value).partition("0600: ")[2]
    folder = os.path.dirname(sys.executable)
    variables = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], check=True, env=variables, timeout=60)
    assert len(key_file.read(str(path), "--key-file")) == 64


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
