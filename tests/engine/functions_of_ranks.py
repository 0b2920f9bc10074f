"""What the tests of Spark and of Ray run on ranks, and how they look at it. Its contents are sent, as ranks lack it."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import numpy as np

cloudpickle.register_pickle_by_value(sys.modules[__name__])

# In the command lines of an agent, and of a rank.
AGENT, WORKER = "agent/summoned.py", "function/worker.py"
SAMPLES, BATCH, EPOCHS = 120, 12, 3


def until(condition, seconds=90):
    """On a rank: waits for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        threading.Event().wait(0.05)


def ancestors():
    """The processes above this one."""
    found, process = [], os.getpid()
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


def wait(folder):
    """Says that this rank is there, and waits for its end."""
    import tfdist

    tfdist.init()
    Path(folder, f"here-{tfdist.rank()}").write_text(str(os.getpid()))
    threading.Event().wait(600)


def fail(text):
    """Rank 1 does, and the others wait for it."""
    import tfdist

    tfdist.init()
    if tfdist.rank() == 1:
        raise ZeroDivisionError(text)
    tfdist.barrier()


def train(ranks):
    """Three epochs of a model; with `ranks` 1 on the concatenated batches. Returns the weights."""
    import keras

    import tfdist

    tfdist.init()
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(3).normal(size=(32, 5)).astype("float32")
    y = x @ np.arange(5, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    mine = tfdist.shard((x, y))
    callback = tfdist.callbacks.DataParallel(scale_learning_rate=False)
    model.fit(*mine, batch_size=8 // ranks, epochs=3, shuffle=False, verbose=0, callbacks=[callback])
    return [weight.tolist() for weight in model.get_weights()]


def train_elastic(folder, waits):
    """A fit with a global batch; in one process if `folder` is None.

    Args:
        folder: Where files are made that tell the test how far it is.
        waits: After which step the ranks wait for what: till one is "killed", or for "others".

    Returns:
        The weights, and each step that this rank has ended, with the number of ranks.
    """
    import keras
    import tensorflow as tf

    import tfdist
    from tfdist.world import runtime

    if folder is not None:
        tfdist.init()
    steps = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            steps.append((step, tfdist.size()))
            tfdist.ray.log({"step": step, "size": tfdist.size()})
            if waits.get(step) == "killed":
                Path(folder, f"rank-{tfdist.rank()}").write_text(" ".join(map(str, ancestors())))
                until(Path(folder, "killed").exists)
                until(lambda: tfdist.rank() == 0 or runtime.retires())  # its agent goes with what was killed
            elif waits.get(step) == "others" and tfdist.size() == 1:
                Path(folder, "alone").touch()
                until(runtime.meets)

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(3).normal(size=(SAMPLES, 5)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, x @ np.arange(5, dtype="float32")[:, None]))
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.003, momentum=0.9), loss="mse")
    if folder is None:
        model.fit(rows.batch(BATCH), epochs=EPOCHS, verbose=0)
    else:
        callbacks = [tfdist.callbacks.DataParallel(elastic=True), Watch()]
        model.fit(tfdist.shard(rows, global_batch=BATCH), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return [weight.tolist() for weight in model.get_weights()], steps


def check_elastic(results, *passed):
    """The weights are those of one process, so each sample counted once; `passed` are (step, ranks) on the way."""
    one, *others = [weights for weights, _ in results]
    assert all(other == one for other in others)
    for weight, expected in zip(one, train_elastic(None, {})[0], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=1e-6)
    steps = results[0][1]
    assert set(passed) <= set(steps)
    assert {step for step, _ in steps} == set(range(1, 1 + EPOCHS * SAMPLES // BATCH)), steps


def kill_above(folder, candidates):
    """Has the one of these processes killed that rank 1 runs below, when both ranks of `train_elastic` are there."""
    (process,) = set(map(int, Path(folder, "rank-1").read_text().split())) & set(candidates)
    os.kill(process, 9)
    Path(folder, "killed").touch()


def check_example(
    script, ranks, folder, said=r"validation accuracy: (\d\.\d+), by a model of 9610 parameters", words=()
):
    """It runs as it is, and learns the digits; returns what it has printed, and the accuracy."""
    program = Path(__file__).resolve().parents[2] / "examples" / script
    done = subprocess.run(
        [sys.executable, program, f"--ranks={ranks}", "--epochs=8", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(f"^{said}$", done.stdout, re.MULTILINE)
    assert found is not None and float(found[1]) >= 0.9, done.stdout
    return done.stdout, found[1]


def check_data_service(path, begin, wait_until):
    """A compute job serves a dataset to this process, and ends when it is told to.

    Args:
        path: The file of the job.
        begin: Called with a function and its arguments; has ranks call it, and returns what they return.
        wait_until: The fixture.
    """
    import tensorflow as tf

    from tfdist.tensorflow.data import compute_worker
    from tfdist.tensorflow.data.compute_service import TfDataServiceConfig, send_to_data_service

    found = []
    thread = threading.Thread(target=lambda: found.append(begin(compute_worker.main, ([str(path)],))))
    thread.start()
    wait_until(path.exists, seconds=120, what="the file of the compute job")
    config = TfDataServiceConfig.read(str(path))
    dataset = send_to_data_service(tf.data.Dataset.range(10).map(lambda number: number * 3), config, 0)
    assert sorted(int(element) for element in dataset) == list(range(0, 30, 3))
    config.compute_client().shutdown()
    thread.join(60)
    assert found == [[None, None]]
    assert not path.exists()
