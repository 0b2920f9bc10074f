"""A rank of a training with PyTorch is lost: the others continue in place, with every sample counted."""

import re
import sys
from pathlib import Path

import pytest
import torch

TRAINING = Path(__file__).with_name("elastic_training.py")
sys.path.insert(0, str(TRAINING.parent))
import elastic_training as training  # noqa: E402 -- a program beside this file

CASES = {
    "nobody": (3, ""),
    "before a step": (3, "1:5:before"),
    "the first, in its backward pass": (3, "0:5:backward"),
    "after a step": (3, "2:7:after"),
    "one after the other": (4, "1:3:backward,0:12:before"),
    "by an error": (3, "2:6:fails"),
    "one that hangs": (3, "1:5:hangs"),
}


def read_steps(folder):
    """Of each step: its epoch and the rows of each rank, in the last attempt. Each has another number of ranks."""
    attempts = {}
    for path in folder.glob("steps-*"):
        for line in path.read_text().splitlines():
            step, *numbers = map(int, line.split())
            attempts.setdefault(step, []).append(numbers)
    steps = []
    for step in sorted(attempts):
        last = max(attempts[step])[2]
        steps.append([(epoch, rows) for _, epoch, size, *rows in attempts[step] if size == last])
        assert len(steps[-1]) == last, (step, attempts[step])
    return steps


def replay(steps):
    """One process, on the batches of all ranks."""
    model = training.make_model(0)
    optimizer = training.make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    for ranks in steps:
        training.take_step(model, optimizer, [row for _, rows in ranks for row in rows], training.make_rows())
        scheduler.step()
    return model.state_dict()


def check(folder, survivors):
    """Every sample counted once in each epoch, and the weights are those of one process."""
    steps = read_steps(folder)
    for epoch in range(training.EPOCHS):
        seen = [row for ranks in steps for place, rows in ranks if place == epoch for row in rows]
        assert sorted(seen) == list(range(training.ROWS)), (epoch, steps)
    expected = replay(steps)
    weights = [torch.load(path) for path in folder.glob("weights-*")]
    assert len(weights) == survivors
    for name, values in expected.items():
        assert all(torch.equal(other[name], weights[0][name]) for other in weights), name
        assert torch.allclose(weights[0][name], values, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("case", CASES)
def test_the_others_continue_in_place(launch, tmp_path, case):
    size, victims = CASES[case]
    lost = len([victim for victim in victims.split(",") if victim])
    limit = {"TFDIST_STALL_CHECK_SHUTDOWN_TIME": "5"} if case == "one that hangs" else {}
    done = launch(size, TRAINING, victims, options=("--elastic",), **limit)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(rf"ended {size - lost} ", done.stdout)) == size - lost, done.stdout
    assert len(list(tmp_path.glob("steps-*"))) == size  # no process was started again
    check(tmp_path, size - lost)


def test_a_new_rank_joins_in_place(launch, tmp_path):
    (tmp_path / "hosts").write_text("localhost:2")
    options = ("--elastic", "--host-discovery-script", "cat hosts")
    done = launch(2, TRAINING, "0:5:waits", options=options)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ended 3 [3]") == 3, done.stdout
    check(tmp_path, 3)
