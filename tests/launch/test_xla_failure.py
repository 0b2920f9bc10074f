"""A compiled step whose peer is late, done or dead: the error and the words of a step that is not compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.ops.graph import xla

if xla.obstacle():
    pytest.skip(xla.obstacle(), allow_module_level=True)

pytestmark = pytest.mark.slice("launch")
BIN = Path(sys.executable).parent

# The survivor leaves by _exit: MPI_Finalize would wait for a peer that is gone.
JOB = """
import glob, os, signal, sys, time, tensorflow as tf, tfdist

# The limit of a wait counts in init, too.
open(f"here{{os.getpid()}}", "w").close()
while len(glob.glob("here*")) < 2: time.sleep(0.01)
tfdist.init()

@tf.function(jit_compile=True)
def step(x):
    return tfdist.allreduce(x, op=tfdist.Sum, name="gradients")

assert float(step(tf.constant(1.0))) == 2
if tfdist.rank() == 1:
    {fate}
start = time.monotonic()
try:
    step(tf.constant(1.0))
except tf.errors.OpError as error:
    print("caught", type(error).__name__, error.message.replace("\\n", " "), flush=True)
    print("seconds", time.monotonic() - start, flush=True)
os._exit(0)
"""

# What becomes of rank 1, the class that rank 0 gets, what its message says.
FATES = {
    "late": ("signal.pause()", "DeadlineExceededError", ["'gradients'", "rank 1", "waited 3.0 s in"]),
    "done": ("tfdist.shutdown(); os._exit(0)", "FailedPreconditionError", ["'gradients'", "rank 1 has finished"]),
    # TensorFlow makes an Unavailable that any tf.function returns an Internal.
    "dead": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "InternalError",
        ["'gradients'", "rank 0 (host", "lost rank 1 (host", "whose process has ended"],
    ),
}
LIMIT_SECONDS = 8


@pytest.mark.parametrize("fate", FATES)
def test_the_survivor_gets_the_error_and_its_words(tmp_path, fate):
    what, kind, texts = FATES[fate]
    script = tmp_path / "job.py"
    script.write_text(JOB.format(fate=what))
    # Not tfdistrun, which would end the survivor.
    command = [str(BIN / "mpirun"), "--with-ft", "ulfm", "--oversubscribe", "-np", "2", sys.executable, str(script)]
    environment = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_mtl": "^ofi",
        "TFDIST_STALL_CHECK_WARNING_TIME": "1",
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "3",
    }
    # The late rank never ends, so what counts is what the other one prints before this does.
    job = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    try:
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if line.startswith("seconds"):
                break
    finally:
        job.terminate()
        job.wait(timeout=30)
    caught = [line for line in lines if line.startswith("caught")]
    assert len(caught) == 1, lines
    assert caught[0].split()[1] == kind
    for text in texts:
        assert text in caught[0]
    assert float(lines[-1].split()[1]) < LIMIT_SECONDS
