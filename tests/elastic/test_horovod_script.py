"""Elastic scripts that were written for Horovod survive a loss: unchanged, and when their import lines are changed."""

import re
import sys
from pathlib import Path

import pytest
from elastic_job import run

pytestmark = pytest.mark.slice("elastic")

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "migrating-from-horovod.md"


def changed(script):
    """The script with the import lines that the guide has for it."""
    text = (HERE / script).read_text()
    for old, new in re.findall(
        r"`(import horovod\.[\w.]+ as hvd)`.*\| `(import tfdist\.\w+ as hvd)`", GUIDE.read_text()
    ):
        text = re.sub(rf"^{re.escape(old)}$", new, text, flags=re.MULTILINE)
    old, new = re.search(
        r"`(from horovod\.common\.exceptions) import .*\| `(from tfdist\.errors) import ", GUIDE.read_text()
    ).groups()
    text = text.replace(old, new)
    assert "import horovod" not in text and "from horovod" not in text
    return text


def ends(folder, script, *words, options=("-np", "3", "--min-np", "2"), as_horovod=False):
    """What each rank printed last, the digests of the weights, and all output."""
    (folder / script).write_text((HERE / script).read_text() if as_horovod else changed(script))
    options = [*options, *["--as-horovod"] * as_horovod]
    done = run(folder, "-m", "tfdist.launch", *options, sys.executable, script, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^\[\d\] end (.*) \w{64}$", done.stdout, re.MULTILINE)
    return lines, set(re.findall(r"\w{64}$", done.stdout, re.MULTILINE)), done.stdout


@pytest.mark.parametrize(("victim", "as_horovod"), [(1, True), (0, False)])
def test_keras(tmp_path, victim, as_horovod):
    """Killed after batch 6 of 8 of the second epoch: 1 step alone, 8, 6, 1 after the loss, and two epochs of 12."""
    lines, digests, output = ends(tmp_path, "horovod_keras.py", str(victim), "1", "6", as_horovod=as_horovod)
    assert (tmp_path / "killed").exists()
    assert lines == ["epoch=3 batch=0 size=2 rate=0.020 steps=40"] * 2
    assert len(digests) == 1
    assert output.count("a rank was lost") == 2


@pytest.mark.parametrize(("kind", "as_horovod"), [("model", False), ("variables", True)])
def test_tensorflow(tmp_path, kind, as_horovod):
    """Killed at step 18, of which the two after the commit are taken once more."""
    lines, digests, _ = ends(tmp_path, "horovod_tensorflow.py", kind, "2", "18", as_horovod=as_horovod)
    assert (tmp_path / "killed").exists()
    assert lines == ["trained batch=60 size=2 rate=0.020 steps=60"] * 2
    assert len(digests) == 1


@pytest.mark.parametrize("as_horovod", [False, True])
def test_script_hears_of_other_hosts(tmp_path, as_horovod):
    """And `run` goes on with the rank that has come."""
    (tmp_path / "hosts").write_text("localhost:2")
    options = ("-np", "2", "--min-np", "2", "--host-discovery-script", "cat hosts")
    words = ("model", "0", "hosts")
    lines, digests, output = ends(tmp_path, "horovod_tensorflow.py", *words, options=options, as_horovod=as_horovod)
    assert lines == ["trained batch=60 size=3 rate=0.030 steps=60"] * 3
    assert len(digests) == 1
    assert output.count("hosts were updated") == 2
