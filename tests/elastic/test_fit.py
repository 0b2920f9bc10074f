"""A fit goes on when ranks are killed, and ends where a training ends that has the same ranks at the same steps."""

import re

import pytest
from elastic_job import check_weights, train

# Several losses of one job are far enough apart for the ranks that are left to go on between them.
CASES = {
    "nobody": (3, ""),
    "the first, one after the last step of an epoch, one in a validation": (4, "0:12:step,1:36:step,2:96:validation"),
    "at the end of an epoch, in a commit that it writes, by an error": (4, "0:30:epoch,1:47:commit,2:70:fail"),
    "pair": (2, "1:17:step"),
    "two at once": (4, "1:20:step,2:20:step"),
    "while the others meet and while they get the newest commit": (4, "1:17:step,2:0:at=meeting,3:0:at=sync"),
    "while the others compare their commits": (3, "0:17:step,1:0:at=count"),
    "one that hangs": (3, "1:17:stop"),
    "where a step of Keras is several": (3, "1:5:step", 3),
    "where XLA compiles the step": (3, "1:17:step"),
}
# Others have waited for it that long.
OPTIONS = {"one that hangs": ("--stall-check-shutdown-time-seconds", "10")}
OF_MAKE_TEST = "where a step of Keras is several"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slice("elastic")] * (name != OF_MAKE_TEST)) for name in CASES]
)
def test_survivors_reach_the_weights_of_a_lossless_training(tmp_path, case):
    size, victims, *at_once = CASES[case]
    killed = {int(victim.split(":")[0]) for victim in victims.split(",") if victim}
    done = train(
        tmp_path, size, "--elastic", *OPTIONS.get(case, ()), victims=victims,
        steps_at_once=at_once[0] if at_once else 1, compiled="XLA" in case,
    )  # fmt: skip
    survivors = [rank for rank in range(size) if rank not in killed]
    assert check_weights(tmp_path, done, survivors)[-1][1] == len(survivors)
    for rank in survivors:
        assert len(re.findall(rf"^\[{rank}\] training (begins|ends)$", done.stdout, re.MULTILINE)) == 2
