"""An elastic job on Spark's executors: one of them is killed, tasks come later, and what is refused."""

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import tfdist.spark
from tfdist.errors import ConfigError, RankError

AGENT, WORKER, EXECUTOR = "agent/summoned.py", "function/worker.py", "CoarseGrainedExecutorBackend --driver-url"
SAMPLES, BATCH, EPOCHS = 120, 12, 3


# Executors cannot import this module, so it is sent with what is in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def nothing_is_left(context, processes, wait_until):
    yield
    wait_until(lambda: not processes(AGENT) + processes(WORKER), seconds=5, what="the end of all ranks and agents")
    assert not context.statusTracker().getActiveJobsIds()


def until(condition, seconds=90):
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


def train(folder, waits):
    """A fit with a global batch; `waits` says after which step ranks wait: till one is "killed", or for "others".

    Returns the weights, and each step that this rank has ended, with the number of ranks.
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
            if waits.get(step) == "killed":
                Path(folder, f"rank-{tfdist.rank()}").write_text(" ".join(map(str, ancestors())))
                until(Path(folder, "killed").exists)
                until(lambda: tfdist.rank() == 0 or runtime.retires())  # its agent goes with the executor
            elif waits.get(step) == "others" and tfdist.size() == 1:
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


def assert_equals_one_process(results):
    one, *others = [weights for weights, _ in results]
    assert all(other == one for other in others)
    for weight, expected in zip(one, train(None, {})[0], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=1e-6)


def test_an_executor_that_is_killed_is_replaced(processes, tmp_path, wait_until):
    """All samples count once, whoever takes them: the weights are those of one process."""

    def kill():
        wait_until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, seconds=120, what="both ranks")
        above = set(map(int, (tmp_path / "rank-1").read_text().split()))
        (executor,) = above & set(processes(EXECUTOR))
        os.kill(executor, signal.SIGKILL)
        (tmp_path / "killed").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    out = io.StringIO()
    results = tfdist.spark.run_elastic(
        train, (str(tmp_path), {5: "killed", 20: "others"}), num_proc=2, stdout=out, stderr=out
    )
    thread.join(10)
    assert len(results) == 2, out.getvalue()
    assert_equals_one_process(results)
    steps = results[0][1]
    assert {(5, 2), (20, 1), (30, 2)} <= set(steps)
    assert {step for step, _ in steps} == set(range(1, 1 + EPOCHS * SAMPLES // BATCH))


def test_a_task_that_comes_later_joins(context, tmp_path):
    """There are two slots: the second rank joins, and the third has no place."""
    results = tfdist.spark.run_elastic(
        train, (str(tmp_path), {3: "others"}), num_proc=1, max_num_proc=3, stderr=io.StringIO()
    )
    assert len(results) == 2
    assert_equals_one_process(results)
    assert {(3, 1), (30, 2)} <= set(results[0][1])


def test_errors_of_ranks():
    def fail(rank):
        import tfdist

        tfdist.init()
        tfdist.barrier()
        if rank is None or tfdist.rank() == rank:
            raise ZeroDivisionError(f"of rank {tfdist.rank()}")
        until(lambda: tfdist.size() == 1)

    with pytest.raises(ZeroDivisionError, match="of rank"):
        tfdist.spark.run_elastic(fail, (None,), num_proc=2, stderr=io.StringIO())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_proc": 3}, r"3 ranks need as many task slots .* have 2\. Ask for num_proc=2 or less"),
        ({"num_proc": 0}, "num_proc must be a whole number of ranks, 1 or more; received 0"),
        ({"min_num_proc": "1"}, "min_num_proc must be a whole number of ranks, 1 or more; received '1'"),
        ({"max_num_proc": 1, "num_proc": 2}, "min_num_proc <= num_proc <= max_num_proc; received 1, 2, 1"),
        ({"min_num_proc": 2}, "min_num_proc <= num_proc <= max_num_proc; received 2, 1, 1"),
        ({"elastic_timeout": 3}, "elastic_timeout must be None, because ranks never wait for others to come"),
        ({"reset_limit": 3}, "reset_limit must be None, because ranks are never started anew"),
        ({"fn": 3}, "run_elastic: fn must be a function; received 3"),
        ({"start_timeout": -1}, "start_timeout must be a number of seconds, more than 0; received -1"),
    ],
)
def test_what_is_refused(context, given, text):
    with pytest.raises(ConfigError, match=text):
        tfdist.spark.run_elastic(**{"fn": lambda: None, "num_proc": 1, **given})
    assert not context.statusTracker().getActiveJobsIds()


def test_old_names():
    with pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc"):
        with pytest.raises(ConfigError, match="received 2, 1, 1"):
            tfdist.spark.run_elastic(lambda: None, num_proc=1, min_np=2)
    with pytest.warns(DeprecationWarning, match="max_np"), pytest.raises(ConfigError, match="=3 and max_np=2 differ"):
        tfdist.spark.run_elastic(lambda: None, num_proc=1, max_num_proc=3, max_np=2)


def test_speculation(context, monkeypatch):
    conf = context.getConf().set("spark.speculation", "true")
    monkeypatch.setattr(context, "getConf", lambda: conf)
    with pytest.raises(ConfigError, match=r"--conf spark\.speculation=false"):
        tfdist.spark.run_elastic(lambda: None, num_proc=1)


def test_dynamic_allocation_needs_no_slots_before(context, monkeypatch):
    """Its executors come when tasks wait for them; here none comes."""
    conf = context.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(context, "getConf", lambda: conf)
    with pytest.raises(RankError, match=r"not all of the 3 tasks ran within 8 s\. .* or raise start_timeout"):
        tfdist.spark.run_elastic(lambda: None, num_proc=3, start_timeout=8, stderr=io.StringIO())
