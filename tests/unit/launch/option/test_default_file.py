"""Tests of tfdist.launch.option.default_file, and of what --print-config writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch import command
from tfdist.launch.option import default_file, option


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in the working folder; it does not exist yet."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / default_file.NAME


def _find() -> tuple[tuple[str, str] | None, list[str]]:
    said: list[str] = []
    return default_file.find(said.append), said


def test_file_of_this_user(place: Path) -> None:
    assert _find() == (None, [])
    place.write_text("num-proc: 3\n")
    place.chmod(0o644)
    assert _find() == ((str(place), "num-proc: 3\n"), [f"options from {place}; --no-config leaves it out"])


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_file_that_others_can_write(place: Path, mode: int) -> None:
    place.write_text("num-proc: 3\n")
    place.chmod(mode)
    found, (line,) = _find()
    assert found is None
    assert f"{place} is ignored: other users can write it" in line and "chmod go-w tfdist.yaml" in line


def test_file_or_link_of_another_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_text("num-proc: 3\n")
    place.chmod(0o644)
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file to another user")
    os.chown(place, 12345, -1)
    found, (line,) = _find()
    assert (found, "it belongs to user 12345" in line) == (None, True)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert _find()[0] == (str(place), "num-proc: 3\n")
    os.chown(place, 0, -1)
    assert _find()[0] == (str(place), "num-proc: 3\n"), "root may write all files"
    place.rename(place.with_name("mine.yaml"))
    place.symlink_to("mine.yaml")
    assert _find()[0] is not None
    os.chown(place, 54321, -1, follow_symlinks=False)
    assert "it belongs to user 54321" in _find()[1][0]


def test_what_is_not_a_file(place: Path) -> None:
    os.mkfifo(place, 0o600)
    assert "it is not a file" in _find()[1][0]
    place.unlink()
    place.symlink_to("gone.yaml")
    with pytest.raises(ConfigError, match=r"tfdist.yaml cannot be read: .*No such file.* --no-config"):
        _find()
    place.unlink()
    place.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"tfdist.yaml cannot be read: .*utf-8"):
        _find()


def _parse(*words: str) -> tuple[int | None, list[str]]:
    said: list[str] = []
    known, _ = option.parse([*words, "x"], nearby=lambda: default_file.find(said.append))
    return known.num_proc, said


def test_options_on_the_command_line_win(place: Path) -> None:
    place.write_text("num-proc: 3\nhosts: a:4\n")
    place.chmod(0o644)
    (place.parent / "other.yaml").write_text("num-proc: 2\n")
    assert _parse()[0] == 3
    assert _parse("-np", "1")[0] == 1
    assert _parse("-np", "1", "--no-config") == (1, [])
    assert _parse("--config-file", "other.yaml") == (2, [])
    place.write_text("num-prox: 3\n")
    with pytest.raises(ConfigError, match=f"{place}: num-prox: no such option; did you mean num-proc"):
        _parse()


def test_job_from_python_reads_no_file(place: Path) -> None:
    place.write_text("num-proc: 0\n")
    place.chmod(0o644)
    launcher, console = command.prepare(["-np", "2", "sh"])
    launcher._channel.close()
    console.close()
    assert launcher.job.hosts == ["localhost", "localhost"]


WORDS = (
    *("-np", "auto", "-H", "a:4,b:2", "--verbose", "--export", "A,B", "--export", "C", "--elastic", "-p", "2222"),
    *("--blacklist-cooldown-range", "2", "30.5", "--data-workers=2", "--autoscale", "1:4", "--backup-dir", "yes"),
    *("--autotune", "--no-autotune", "--stall-check", "--no-mpi", "--network-interface", "lo"),
)


def test_printed_options_give_the_same_job(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def job(*words: str) -> dict[str, object]:
        known, _ = option.parse([*words, "x"], nearby=lambda: default_file.find(lambda line: None))
        known.export = [name for names in known.export for name in names]
        return vars(known)

    expected = job(*WORDS)
    assert command.main([*WORDS, "--print-config", "python", "gone.py"]) == 0
    place.write_text(capsys.readouterr().out)
    place.chmod(0o644)
    assert job() == expected
    assert "num-proc: auto\n" in place.read_text() and "ssh-port: 2222\n" in place.read_text()
    assert command.main(["-np", "2", "--print-config"]) == 0
    shown = capsys.readouterr()
    assert "num-proc: 2\n" in shown.out and "hosts: a:4,b:2\n" in shown.out
    assert str(place) in shown.err
    assert command.main(["--no-config", "--print-config"]) == 2
    assert "no options to print" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--network-interface", "--network-interfaces"])
@pytest.mark.parametrize("of_file", ["network-interface", "network-interfaces"])
def test_command_line_replaces_either_spelling_of_interfaces(place: Path, of_file: str, given: str) -> None:
    place.write_text(f"{of_file}: eth1\n")
    place.chmod(0o644)
    known, _ = option.parse(["-np", "2", given, "eth0", "x"], nearby=lambda: default_file.find(lambda line: None))
    assert known.network_interfaces == ("eth0",)
