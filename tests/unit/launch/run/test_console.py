"""Tests of tfdist.launch.run.console."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.run.console import READER_S, Console
from tfdist.system.terminal.line import LINE, PARTIAL, Piece


def _descriptors(folder: Path, *names: str) -> dict[str, int]:
    opened = {name: os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in names}
    return {"stdout": opened[names[0]], "stderr": opened[names[-1]]}


def test_streams_and_files(tmp_path: Path) -> None:
    console = Console(folder=str(tmp_path / "logs"), ranks=11, descriptors=_descriptors(tmp_path, "out", "err"))
    console.write(3, "stdout", Piece(b"a\nb", LINE))
    console.write(3, "stderr", Piece(b"part", PARTIAL))
    console.say("words")
    console.close()
    assert (tmp_path / "out").read_bytes() == b"[3] a\n[3] b\n"
    assert (tmp_path / "err").read_bytes() == b"[3] part\nwords\n"
    assert (tmp_path / "logs/rank.03/stdout").read_bytes() == b"a\nb\n"
    assert (tmp_path / "logs/rank.03/stderr").read_bytes() == b"part"
    assert (tmp_path / "logs/rank.10/stdout").read_bytes() == b""


def test_one_terminal_for_both(tmp_path: Path) -> None:
    console = Console(descriptors=_descriptors(tmp_path, "tty"), timestamps=True, clock=lambda: "T")
    console.write(0, "stdout", Piece(b"part", PARTIAL))
    console.write(0, "stderr", Piece(b"error", LINE))
    console.close()
    assert (tmp_path / "tty").read_bytes() == b"T [0] part\nT [0] error\n"


def test_reader_that_has_gone(tmp_path: Path) -> None:
    descriptors = _descriptors(tmp_path, "out", "err")
    reader, descriptors["stdout"] = os.pipe()
    os.close(reader)
    console = Console(descriptors=descriptors)
    console.write(0, "stdout", Piece(b"lost", LINE))
    console.write(0, "stdout", Piece(b"lost", LINE))
    console.write(0, "stderr", Piece(b"kept", LINE))
    console.close()
    note = b"tfdistrun: stdout was closed by its reader: the job continues, further output to it is dropped\n"
    assert (tmp_path / "err").read_bytes() == note + b"[0] kept\n"


def test_reader_that_stands_still(tmp_path: Path) -> None:
    """It holds up neither the other stream nor the end, and it is said what it has missed."""
    descriptors = _descriptors(tmp_path, "out", "err")
    reader, descriptors["stdout"] = os.pipe()
    console, told = Console(descriptors=descriptors), []
    console.watch(lambda rank, size: told.append((rank, size)))
    console.write(1, "stdout", Piece(b"x" * 100_000, LINE))
    console.write(0, "stderr", Piece(b"error", LINE))
    assert told == [(0, 6)]
    console.hurry(0.2)
    begin = time.monotonic()
    console.close()
    assert time.monotonic() - begin < READER_S + 0.5
    assert told == [(0, 6), (1, 100_001)]
    kept = len(os.read(reader, 1 << 20))
    said = (tmp_path / "err").read_text().splitlines()
    assert said[0] == "[0] error"
    assert f": {100_005 - kept} bytes are lost; --output-filename DIR keeps all" in said[1]


def test_own_words_are_spelled_as_the_caller_does(tmp_path: Path) -> None:
    console = Console(descriptors=_descriptors(tmp_path, "out", "err"), spell=str.upper)
    console.write(0, "stderr", Piece(b"theirs", LINE))
    console.say("ours")
    console.close()
    assert (tmp_path / "err").read_text() == "[0] theirs\nOURS\n"


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--output-filename"):
        Console(folder=str(tmp_path / "file"))


ABSL = b"I0000 00:00:1795237136.609983    8891 port.cc:153] oneDNN custom operations are on."
TENSORFLOW = (
    b"2026-11-21 05:02:17.123456: I tensorflow/core/platform/cpu_feature_guard.cc:227] This binary is optimized"
)


@pytest.mark.parametrize(
    ("rank", "stream", "chatter", "shown"),
    [
        (1, "stderr", False, b"[1] before\n[1] after\n"),
        (1, "stderr", True, b"[1] before\n[1] " + ABSL + b"\n[1] " + TENSORFLOW + b"\n[1] after\n"),
        (0, "stderr", False, b"[0] before\n[0] " + ABSL + b"\n[0] " + TENSORFLOW + b"\n[0] after\n"),
        (1, "stdout", False, b"[1] before\n[1] " + ABSL + b"\n[1] " + TENSORFLOW + b"\n[1] after\n"),
    ],
)
def test_chatter_of_other_ranks_is_kept_back(
    tmp_path: Path, rank: int, stream: str, chatter: bool, shown: bytes
) -> None:
    descriptors = _descriptors(tmp_path, "tty")
    console = Console(chatter=chatter, folder=str(tmp_path / "logs"), ranks=2, descriptors=descriptors)
    text = b"\n".join([b"before", ABSL, TENSORFLOW, b"after"])
    console.write(rank, stream, Piece(text, LINE))
    console.close()
    assert (tmp_path / "tty").read_bytes() == shown
    assert (tmp_path / f"logs/rank.{rank}/{stream}").read_bytes().startswith(text + b"\n")


def test_full_disk(tmp_path: Path) -> None:
    """What ranks print is missing there, and nowhere else; there may be room for more later."""
    console = Console(folder=str(tmp_path / "logs"), ranks=2, descriptors=_descriptors(tmp_path, "out", "err"))
    kept = console._files[1, "stdout"]
    console._files[1, "stdout"] = full = os.open("/dev/full", os.O_WRONLY)
    for _ in range(2):
        console.write(1, "stdout", Piece(b"lost", LINE))
    console._files[1, "stdout"] = kept
    os.close(full)
    console.write(1, "stdout", Piece(b"kept", LINE))
    console.close()
    assert (tmp_path / "out").read_bytes() == b"[1] lost\n[1] lost\n[1] kept\n"
    assert (tmp_path / "logs/rank.1/stdout").read_bytes() == b"kept\n"
    first, last = (tmp_path / "err").read_text().splitlines()
    logs = tmp_path / "logs"
    assert first.startswith(f"tfdistrun: output of rank 1 is missing in {logs}: ") and "No space left" in first
    assert last == f"tfdistrun: 10 bytes of output are missing in {logs}"


def test_stdout_on_a_full_disk(tmp_path: Path) -> None:
    descriptors = _descriptors(tmp_path, "err", "err") | {"stdout": os.open("/dev/full", os.O_WRONLY)}
    console = Console(descriptors=descriptors)
    console.write(0, "stdout", Piece(b"lost", LINE))
    console.write(0, "stderr", Piece(b"kept", LINE))
    console.close()
    lost = b"tfdistrun: 9 bytes of output could not be written to stdout: No space left on device\n"
    assert (tmp_path / "err").read_bytes() == b"[0] kept\n" + lost
