"""What a process with tfdist.torch imports, and how its handles end with it."""

import subprocess
import sys

import pytest

IMPORTS = """
import sys, torch
import tfdist.torch as hvd
hvd.init()
assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2
hvd.shutdown()
assert not {"tensorflow", "keras"} & set(sys.modules)
"""
AGAIN = """
import torch, tfdist.torch as hvd
for _ in range(2):
    hvd.init()
    assert hvd.is_initialized()
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2
    hvd.shutdown()
    assert not hvd.is_initialized()
    print("was there")
"""
TIMELINE = (
    "import torch, tfdist.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(3), name='of three'); hvd.shutdown()"
)
GRADIENT = """
import torch, tfdist.torch as hvd
hvd.init()
own = torch.full((2,), float(hvd.rank()), requires_grad=True)
for _ in range(2):
    hvd.allgather(own).sum().backward()
"""
# The first handle is left; the name of the second differs by rank.
HANDLES = """
import sys, torch, tfdist.torch as hvd
hvd.init()
hvd.allreduce_async(torch.ones(2), name="left")
handle = hvd.allreduce_async(torch.ones(2), name=f"of rank {hvd.rank()}")
if sys.argv[1] == "shutdown":
    hvd.shutdown()
if sys.argv[1] != "exit":
    try:
        hvd.synchronize(handle)
    except Exception as error:
        print("ended by", type(error).__name__, "and", error)
"""
# Rank 1 waits for what rank 0 writes when its own wait has ended.
ONE_STARTS_NOTHING = """
import pathlib, time, torch, tfdist.torch as hvd
from tfdist.errors import StallError
hvd.init()
told, end = pathlib.Path("told"), time.monotonic() + 60
if hvd.rank() == 0:
    try:
        hvd.allreduce(torch.ones(2), name="gradient")
    except StallError as error:
        told.write_text(str(error))
while not told.exists() and time.monotonic() < end:
    pass
"""


ALONE = """
import sys, torch, tfdist.torch as hvd
hvd.init()
model = torch.nn.Linear(2, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if "wrapped" in sys.argv:
    optimizer = hvd.DistributedOptimizer(optimizer)
loss = model(torch.ones(3, 2)).sum()
loss.backward()
optimizer.step()
hvd.allreduce(loss.detach())
"""


@pytest.mark.parametrize(("how", "size", "warned"), [("alone", 2, 1), ("wrapped", 2, 0), ("alone", 1, 0)])
def test_an_optimizer_that_is_not_distributed_is_told(launch, how, size, warned):
    done = launch(size, "-c", ALONE, how)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("but no gradient was ever reduced: if this job has trained") == warned, done.stdout


@pytest.mark.parametrize("how", ["alone", "wrapped"])
def test_an_elastic_job_with_another_script_is_told(launch, how):
    done = launch(2, "-c", ALONE, how, options=("--elastic",))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("trains outside of a function of hvd.elastic.run") == (how == "wrapped"), done.stdout


def test_import_and_init_need_no_other_framework(launch, refusing):
    script = refusing + IMPORTS
    done = launch(2, "-c", script)
    assert done.returncode == 0, done.stdout
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode == 0, alone.stderr


def test_init_after_shutdown(launch):
    """An only rank starts again; in a job without MPI that is an error."""
    alone = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode == 0 and alone.stdout.count("was there") == 2, alone.stderr
    done = launch(2, "-c", AGAIN)
    assert done.returncode != 0 and done.stdout.count("was there") == 2, done.stdout
    assert "a job without MPI can start only once per rank" in done.stdout


def test_a_timeline_of_the_whole_job(launch, tmp_path):
    variables = {"HOROVOD_TIMELINE": str(tmp_path / "run.json"), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    done = launch(2, "-c", TIMELINE, **variables)
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        text = (tmp_path / f"run.{rank}.json").read_text()
        assert "allreduce of three" in text and '"cycle"' in text


@pytest.mark.parametrize("end", ["wait", "shutdown", "exit"])
def test_handles_that_no_other_rank_has(launch, end):
    """A shutdown waits for them, as `synchronize` does."""
    done = launch(2, "-c", HANDLES, end, TFDIST_STALL_CHECK_SHUTDOWN_TIME="10", TFDIST_STALL_CHECK_WARNING_TIME="1")
    assert done.returncode == 0, done.stdout
    text = "no collective is waited for on all ranks: rank 0 waits for 'of rank 0'; rank 1 waits for 'of rank 1'."
    assert done.stdout.count(f"ended by StallError and {text}") == (0 if end == "exit" else 2), done.stdout
    assert f"tfdist: for 1 s {text}" in done.stdout.replace("no collective was", "no collective is")


def test_a_rank_that_starts_nothing_is_named(launch, tmp_path):
    launch(2, "-c", ONE_STARTS_NOTHING, TFDIST_STALL_CHECK_SHUTDOWN_TIME="10")
    told = (tmp_path / "told").read_text()
    assert "for rank 1 (host" in told and "This rank waits for 'gradient'." in told


def test_a_gradient_that_is_not_horovods_is_told_once(launch):
    done = launch(2, "-c", GRADIENT)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("the gradient of allgather is that of the sum over the 2 ranks") == 1, done.stdout
    assert "gradient of" not in launch(2, "-c", GRADIENT, HOROVOD_GRADIENTS="exact").stdout
