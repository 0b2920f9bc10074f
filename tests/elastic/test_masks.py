"""What ranks with one seed drop, where some are lost and others come: never what any has dropped before."""

import re
import sys

import masks
import pytest
from elastic_job import run

pytestmark = pytest.mark.slice("elastic")


def test_a_loss_in_place_and_then_all_anew(tmp_path):
    words = ("--min-np", "2", sys.executable, masks.__file__, "1:10:step,2:20:step")
    done = run(tmp_path, "-m", "tfdist.launch", "-np", "3", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("restarting with 3 ranks") == 1
    found = re.findall(r"^\[(\d)\] mask (\w+)$", done.stdout, re.MULTILINE)
    # 10 steps of three ranks, 10 of two, and the rest of 120 batches by three again.
    assert len(found) >= 30 + 20 + 69
    _check(found)


def test_a_rank_joins(tmp_path):
    (tmp_path / "hosts").write_text("localhost:2")
    words = ("--elastic", "--host-discovery-script", "cat hosts", sys.executable, masks.__file__)
    done = run(tmp_path, "-m", "tfdist.launch", "-np", "2", *words, "0:10:hosts=localhost/3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restarting" not in done.stderr
    found = re.findall(r"^\[(\d)\] mask (\w+)$", done.stdout, re.MULTILINE)
    # What it has dropped in the step before it joined is undone.
    found.remove(next(one for one in found if one[0] == "2"))
    assert len(found) >= 22 + 96
    _check(found)


def _check(found):
    repeated = {mask for _, mask in found if sum(mask == other for _, other in found) > 1}
    assert not repeated, [rank for rank, mask in found if mask in repeated]
    assert {rank for rank, _ in found} == {"0", "1", "2"}
