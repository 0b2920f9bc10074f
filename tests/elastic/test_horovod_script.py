"""Elastic scripts that were written for Horovod run, and survive a loss, when their import line is changed."""

import re
import sys
from pathlib import Path

import pytest
from elastic_job import run

pytestmark = pytest.mark.slice("elastic")

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "migrating-from-horovod.md"


def changed(script):
    """The script with the import line that the guide has for it."""
    text = (HERE / script).read_text()
    for old, new in re.findall(
        r"`(import horovod\.[\w.]+ as hvd)`.*\| `(import tfdist\.\w+ as hvd)`", GUIDE.read_text()
    ):
        text = re.sub(rf"^{re.escape(old)}$", new, text, flags=re.MULTILINE)
    assert "import horovod" not in text
    return text


def ends(folder, script, *words):
    """What each rank printed last, in a job of three of which one is killed."""
    (folder / script).write_text(changed(script))
    done = run(folder, "-m", "tfdist.launch", "-np", "3", "--min-np", "2", sys.executable, script, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "killed").exists()
    return re.findall(r"^\[\d\] end (.*) \w{64}$", done.stdout, re.MULTILINE), set(
        re.findall(r"\w{64}$", done.stdout, re.MULTILINE)
    )


@pytest.mark.parametrize("victim", [1, 0])
def test_keras(tmp_path, victim):
    """Killed after batch 6 of 8 of the second epoch: 1 step alone, 8, 6, 1 after the loss, and two epochs of 12."""
    lines, digests = ends(tmp_path, "horovod_keras.py", str(victim), "1", "6")
    assert lines == ["epoch=3 batch=0 size=2 rate=0.020 steps=40"] * 2
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ["model", "variables"])
def test_tensorflow(tmp_path, kind):
    """Killed at step 18, of which the two after the commit are taken once more."""
    lines, digests = ends(tmp_path, "horovod_tensorflow.py", kind, "2", "18")
    assert lines == ["trained batch=60 size=2 rate=0.020 steps=60"] * 2
    assert len(digests) == 1
