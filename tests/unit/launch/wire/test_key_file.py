"""Tests of tfdist.launch.wire.key_file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.wire import key_file

KEY = b"0123456789abcdef" * 2


def _file(folder: Path, mode: int = 0o600, content: bytes = KEY) -> str:
    path = folder / "job.key"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_content_without_what_is_around_it(tmp_path: Path, mode: int) -> None:
    assert key_file.read(_file(tmp_path, mode, b"\n " + KEY + b" \r\n")) == KEY


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o602, 0o610, 0o666])
def test_others_may_have_it(tmp_path: Path, mode: int) -> None:
    path = _file(tmp_path, mode)
    with pytest.raises(
        ConfigError, match=rf"--key-file \S+: others may have access to it \(mode 0\d+\): chmod 600 {path}"
    ):
        key_file.read(path)


def test_group_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may read what root or this user owns, as a Secret of Kubernetes; else its owner chose the group."""
    path = _file(tmp_path, 0o440)
    about = os.stat(path)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((about.st_mode, 0, 0, 1, 4711, 0, 64, 0, 0, 0)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="chmod 600"):
        key_file.read(path)
    assert stat.S_ISREG(about.st_mode)


def test_too_short(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"it has 31 bytes; expected 32 or more. Make one with \(umask 077; "
    ) as raised:
        key_file.read(_file(tmp_path, content=KEY[:31] + b"\n" * 9))
    assert KEY[:31].decode() not in str(raised.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file. Make one with .*token_hex\(32\).* > .*/none\), and copy it"):
        key_file.read(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        key_file.read(str(tmp_path))
    with pytest.raises(ConfigError, match="not a file"):
        key_file.read("/dev/null")
