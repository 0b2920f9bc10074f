"""A job with a global batch that loses ranks ends where one process ends: the same steps, by fewer ranks."""

import sys
from pathlib import Path

import global_batch
import numpy as np
import pytest
from elastic_job import run, segments_of

SCRIPT = Path(global_batch.__file__)
REPLACED = ("--blacklist-cooldown-range", "1", "1")
# Ranks, victims, model and the most samples of a rank at once, ranks at the end, options of the launcher. A newcomer is
# the last of the ranks at the end.
CASES = {
    "one in the middle of an epoch": (4, "1:20:step", "momentum", [0, 2, 3]),
    "two, the first one of them": (4, "0:7:step,2:36:step", "adam", [1, 3]),
    "with batch normalization": (3, "2:21:step", "normalization", [0, 1]),
    "all are started again": (2, "1:20:step", "momentum", [0, 1], "--min-np", "2"),
    "one is replaced": (3, "1:5:step,2:20:wait", "adam", [0, 2, 3], *REPLACED),
    "one is replaced, in parts": (3, "1:5:step,2:20:wait", "adam 4", [0, 2, 3], *REPLACED),
    "one is left, in parts": (3, "0:7:step,2:36:step", "momentum 8", [1]),
}
OF_MAKE_TEST = "one in the middle of an epoch"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slice("elastic")] * (name != OF_MAKE_TEST)) for name in CASES]
)
def test_curve_and_weights_are_those_of_one_process(tmp_path, case):
    size, victims, model, left, *options = CASES[case]
    words = ("-np", str(size), "--elastic", *options, sys.executable, str(SCRIPT), victims, *model.split())
    done = run(tmp_path, "-m", "tfdist.launch", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    segments = segments_of(done.stdout, left[0])
    assert [segment[1] for segment in segments][-1] == len(left)
    assert len(segments) > global_batch.EPOCHS, "no rank was lost in the middle of an epoch"
    history, variables = global_batch.one_process(model.split()[0])
    first = _arrays(tmp_path, f"rank-{left[0]}")
    for rank in left:
        for one, other in zip(first, _arrays(tmp_path, f"rank-{rank}"), strict=True):
            np.testing.assert_array_equal(one, other)
        curves = dict(np.load(tmp_path / f"history-{rank}.npz"))
        for name, expected in history.items():
            np.testing.assert_allclose(curves[name], expected, rtol=2e-5, err_msg=name)
    for one, other in zip(first, variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _arrays(folder, name):
    with np.load(folder / f"{name}.npz") as file:
        return [file[key] for key in file.files]
