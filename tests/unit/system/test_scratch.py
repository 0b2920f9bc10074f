"""A temporary folder: gone with its owner, at the latest when the next one starts."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tfdist.system.scratch import clear, scratch

OWNER = """
import signal
from tfdist.system.scratch import scratch
with scratch("data-service") as folder:
    print(folder, flush=True)
    signal.pause()
"""
LONG_AGO = 1000.0


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_it_is_there_and_then_not():
    with scratch("data-service") as folder:
        (Path(folder) / "journal").write_text("x")
    assert not Path(folder).exists()


def test_only_what_a_killed_owner_left_is_cleared(tmp_path):
    owners = [subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = [Path(owner.stdout.readline().strip()) for owner in owners]
    assert all(folder.parent == tmp_path for folder in folders)
    foreign = tmp_path / "another"
    foreign.mkdir()
    for folder in (*folders, foreign):
        (folder / "journal").write_text("x")
        os.utime(folder, (LONG_AGO, LONG_AGO))
    young = tmp_path / "tfdist-data-service.young"
    young.mkdir()
    owners[0].send_signal(signal.SIGKILL)
    owners[0].communicate(timeout=10)
    clear("data-service")
    assert [folder.exists() for folder in (*folders, foreign, young)] == [False, True, True, True]
    owners[1].kill()
    owners[1].communicate(timeout=10)


def test_a_link_is_not_followed(tmp_path):
    target = tmp_path / "mine"
    target.mkdir()
    os.utime(target, (LONG_AGO, LONG_AGO))
    (tmp_path / "tfdist-data-service.link").symlink_to(target)
    clear("data-service")
    assert target.exists()
