"""A training that fails on one rank ends on all, soon, with the code and the reason of the rank that failed first."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SLICE = pytest.mark.slice("launch")
BIN = Path(sys.executable).parent
# From the failure to the end of the launcher.
LIMIT_SECONDS = 10

TRAIN = """
import keras, numpy as np, os, signal, sys, time, tfdist
tfdist.init()
x = np.random.default_rng(tfdist.rank()).normal(size=(80, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")

def fail():
    print("failing at", time.time(), file=sys.stderr, flush=True)
    {failure}

class Fail(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5 and tfdist.rank() == tfdist.size() - 1:
            fail()

model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[tfdist.callbacks.DataParallel(), Fail()])
print("trained to the end")
"""

WITH_MPI4PY = "from mpi4py import MPI" + TRAIN  # mpi4py starts MPI, and ends it when the interpreter exits

# What happens, the possible codes of the job, and what the summary says. A rank that leaves by sys.exit tells its
# peers, who fail at that moment: any of them may be recorded first.
CASES = {
    "exception": ("raise ValueError('the data is broken')", {1}, ["ValueError: the data is broken", "exit code 1"]),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", {137}, ["SIGKILL"]),
    "SIGSEGV": ("os.kill(os.getpid(), signal.SIGSEGV)", {139}, ["SIGSEGV"]),
    "exit code": ("sys.exit(7)", {7, 1}, ["exit code 7"]),
}


def launch(folder, size, text):
    script = folder / "train.py"
    script.write_text(text)
    command = [str(BIN / "tfdistrun"), "-np", str(size), sys.executable, str(script)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    return done, time.time()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "size"), [*((case, 2) for case in CASES), ("exception", 1), ("SIGKILL", 3)])
def test_one_failing_rank_ends_the_job(tmp_path, case, size):
    failure, codes, texts = CASES[case]
    done, end = launch(tmp_path, size, TRAIN.format(failure=failure))
    output = done.stdout + done.stderr
    assert done.returncode in codes, output
    began = [float(line.split()[-1]) for line in output.splitlines() if "failing at" in line]
    assert end - began[0] < LIMIT_SECONDS
    for text in [*texts, f"rank {size - 1}"]:
        assert text in done.stderr, output
    assert "trained to the end" not in output


@pytest.mark.slice("launch")
def test_an_exception_ends_the_job_where_mpi4py_started_mpi(tmp_path):
    done, _ = launch(tmp_path, 2, WITH_MPI4PY.format(failure="raise ValueError('the data is broken')"))
    assert done.returncode == 1
    assert "ValueError: the data is broken" in done.stderr


@pytest.mark.slice("launch")
def test_a_rank_that_has_finished_is_named(tmp_path):
    """Rank 1 leaves after fewer steps with exit code 0: its peers are told, it ends with 1, and the job fails."""
    done, _ = launch(tmp_path, 2, TRAIN.format(failure="sys.exit(0)"))
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "rank 1" in output
    assert "finished" in output
    assert "trained to the end" not in output


def test_every_rank_hears_of_a_missing_script(tmp_path):
    done = subprocess.run(
        [str(BIN / "tfdistrun"), "-np", "2", sys.executable, "missing.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "missing.py" in done.stderr


FORGOTTEN = """
import sys, keras, numpy as np, tfdist
x, y = tfdist.shard((np.arange(64.0).reshape(16, 4), np.arange(16.0)))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
model.fit(x, y, verbose=0, callbacks=[{callbacks}])
print("fit has ended", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("callbacks", "warned"),
    [
        ("", 1),
        pytest.param("tfdist.callbacks.DataParallel()", 0, marks=SLICE),
        pytest.param(
            "tfdist.callbacks.MetricAverageCallback(drift='off'), tfdist.callbacks.Throughput()", 1, marks=SLICE
        ),
    ],
)
def test_training_alone_on_sharded_data_is_not_silent(tmp_path, callbacks, warned):
    done, _ = launch(tmp_path, 2, FORGOTTEN.format(callbacks=callbacks))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no gradient was ever reduced") == warned and "no gradient" not in done.stdout
    if warned:  # at once, and not when the training is over
        assert done.stderr.index("no gradient was ever reduced") < done.stderr.index("[0] fit has ended")


APART = """
import keras, numpy as np, tfdist
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
model.fit(np.ones((16, 4)), np.ones((16, 1)), verbose=0)
{then}
"""


@pytest.mark.parametrize(
    ("ranks", "then", "warned"),
    [(2, "", 1), pytest.param(2, "tfdist.init(); tfdist.barrier()", 0, marks=SLICE), (1, "", 0)],
    ids=["apart", "a_barrier", "one_rank"],
)
def test_training_of_ranks_that_never_meet_is_not_silent(tmp_path, ranks, then, warned):
    done, _ = launch(tmp_path, ranks, APART.format(then=then))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("they have exchanged nothing") == warned
    assert done.stderr.count(f"a model of its own on each of the {ranks} ranks") == warned


LOOP = """
import keras, tensorflow as tf, tfdist
tfdist.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
{before}

@tf.function
def step(x):
    with tfdist.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

step(tf.ones((2, 4)))
"""


@pytest.mark.parametrize(
    ("ranks", "before", "warned"),
    [
        (2, "", 1),
        pytest.param(2, "tfdist.broadcast_variables(model.weights, root_rank=0)", 0, marks=SLICE),
        pytest.param(2, "model.set_weights(tfdist.broadcast_object(model.get_weights(), 0))", 0, marks=SLICE),
        pytest.param(2, "tfdist.check_equal([model.layers[0].bias])", 0, marks=SLICE),
        pytest.param(1, "", 0, marks=SLICE),
    ],
    ids=["forgotten", "variables", "an_object", "compared", "one_rank"],
)
def test_a_loop_whose_ranks_may_have_begun_apart_is_not_silent(tmp_path, ranks, before, warned):
    done, _ = launch(tmp_path, ranks, LOOP.format(before=before))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing has made sure that the weights are the same") == warned


NOT_BEGUN = """
import keras, numpy as np, tfdist
x, y = tfdist.shard((np.arange(64.0).reshape(16, 4), np.arange(16.0)))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")

def stop(logs):
    raise RuntimeError("a store is not there")

callbacks = [tfdist.callbacks.DataParallel(), keras.callbacks.LambdaCallback(on_train_begin=stop)]
try:
    model.fit(x, y, verbose=0, callbacks=callbacks)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slice("launch")
def test_a_fit_without_a_step_has_not_trained_alone(tmp_path):
    done, _ = launch(tmp_path, 2, NOT_BEGUN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a store is not there") == 2
    assert "no gradient was ever reduced" not in done.stdout + done.stderr


LEFT_ALONE = """
import sys, time, tfdist
tfdist.init()
if tfdist.rank() == 1:
    sys.exit(7)
while True:
    time.sleep(0.05)
"""


@pytest.mark.slice("launch")
@pytest.mark.parametrize("before", ["", "from mpi4py import MPI"])
def test_a_rank_that_leaves_with_a_status_waits_for_nobody(tmp_path, before):
    """The other one computes, and would not notice for long."""
    done, _ = launch(tmp_path, 2, before + LEFT_ALONE)
    assert done.returncode == 7, done.stderr
    assert "rank 1" in done.stderr and "exit code 7" in done.stderr


STUCK = """
import os, signal, tfdist
if os.environ["RANK"] == "1":
    signal.pause()  # never calls init
tfdist.init()
"""


@pytest.mark.slice("launch")
def test_waiting_in_init_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_STALL_CHECK_WARNING_TIME", "1")
    monkeypatch.setenv("TFDIST_STALL_CHECK_SHUTDOWN_TIME", "3")
    done, _ = launch(tmp_path, 2, STUCK)
    assert done.returncode == 1
    assert "still waiting: rank 0 has waited 1 seconds in tfdist.init()" in done.stderr
    assert "StallError: rank 0 has waited 3 seconds in tfdist.init()" in done.stderr
