"""A job on Spark's executors: results, errors, lost executors, and what is refused before anything is submitted."""

import io
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import cloudpickle
import functions_of_ranks
import numpy as np
import pytest
from pyspark import SparkFiles

import tfdist.spark
from tfdist.errors import ConfigError, RankError
from tfdist.protocol import mesh
from tfdist.spark import stage

pytestmark = pytest.mark.usefixtures("nothing_is_left")

EXECUTOR = "CoarseGrainedExecutorBackend --driver-url"


# Executors cannot import this module, so it is sent with what is in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def place():
    import os

    import tfdist

    tfdist.init()
    own = np.full(3, tfdist.rank() + 1.0, "float32")
    print("rank", tfdist.rank(), "prints")
    return {
        "rank": tfdist.rank(),
        "local": (tfdist.local_rank(), tfdist.local_size()),
        "sum": tfdist.allreduce(own, op=tfdist.Sum).numpy().tolist(),
        "parent": os.getppid(),
        "MINE": os.environ.get("MINE"),
    }


def test_results_by_rank(context):
    out = io.StringIO()
    found = tfdist.spark.run(place, num_proc=2, env={"MINE": "x y"}, stdout=out)
    assert [each["rank"] for each in found] == [0, 1]
    assert [each["local"] for each in found] == [(0, 2), (1, 2)], "the executors are on one machine"
    assert all(each["sum"] == [3.0] * 3 and each["MINE"] == "x y" for each in found)
    assert sorted(line for line in out.getvalue().splitlines() if "prints" in line) == [
        "[0] rank 0 prints",
        "[1] rank 1 prints",
    ]


def variables(names):
    import os

    return {name: os.environ.get(name) for name in names}


@pytest.mark.parametrize("executable", [None, sys.executable], ids=["of tasks", "given"])
def test_the_environment_is_that_of_the_task(context, monkeypatch, executable):
    given = {"CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "77", "LD_LIBRARY_PATH": "/x", "XLA_FLAGS": "--y"}
    given |= {"PATH": f"/y:{os.environ['PATH']}", "PYTHONPATH": "/z", "TF_MINE": "driver's"}
    names = list(given)
    # Of the task: Spark's own cloudpickle cannot send a function of this module.
    look = lambda _: [os.environ.get(name) for name in names]  # noqa: E731
    (found,) = context.parallelize([0], 1).map(look).collect()
    expected = dict(zip(names, found, strict=True))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert expected.items().isdisjoint(given.items())
    (found,) = tfdist.spark.run(variables, (names,), num_proc=1, executable=executable)
    assert found == expected | {"TF_MINE": "driver's"}
    env = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "5", "TF_MINE": "own"}
    assert tfdist.spark.run(variables, (names,), num_proc=1, executable=executable, env=env) == [expected | env]


def test_as_many_as_the_application_has(context):
    assert len(tfdist.spark.run(lambda: None)) == context.defaultParallelism == 2


def test_one_rank(context):
    assert tfdist.spark.run(place, num_proc=1)[0]["sum"] == [1.0] * 3


def test_a_fit_equals_that_of_one_process(context):
    one, other = tfdist.spark.run(functions_of_ranks.train, (2,), num_proc=2)
    assert one == other
    (alone,) = tfdist.spark.run(functions_of_ranks.train, (1,), num_proc=1)
    for weight, expected in zip(one, alone, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=1e-6)


def test_an_exception_of_a_rank(context):
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        tfdist.spark.run(functions_of_ranks.fail, ("mine",), num_proc=2, stderr=io.StringIO())
    cause = caught.value.__cause__
    assert isinstance(cause, RankError) and cause.rank == 1
    assert "in fail" in str(cause) and "rank 1 of 2 on " in str(cause)


@pytest.fixture
def when_all_are_there(tmp_path, wait_until):
    """Called with what to do when both ranks of `wait` are there, in a thread; returns a list, for the time of that."""
    threads, times = [], []

    def begin(action):
        def act():
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2, seconds=120, what="both ranks")
            times.append(time.monotonic())
            action()

        threads.append(threading.Thread(target=act))
        threads[0].start()
        return times

    yield begin
    threads[0].join(150)
    assert times


def test_an_executor_that_is_killed(context, processes, tmp_path, when_all_are_there):
    killed = when_all_are_there(lambda: os.kill(processes(EXECUTOR)[0], signal.SIGKILL))
    with pytest.raises(RankError, match=r"was lost(.|\n)*Spark says: .*ExecutorLostFailure \(executor \d+"):
        tfdist.spark.run(functions_of_ranks.wait, (str(tmp_path),), num_proc=2, stderr=io.StringIO())
    assert time.monotonic() - killed[0] < 10


def test_a_stage_that_is_cancelled(context, tmp_path, when_all_are_there):
    cancelled = when_all_are_there(context.cancelAllJobs)
    with pytest.raises(RankError, match=r"Spark says: .*cancelled"):
        tfdist.spark.run(functions_of_ranks.wait, (str(tmp_path),), num_proc=2, stderr=io.StringIO())
    assert time.monotonic() - cancelled[0] < 10


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_proc": 3}, r"3 ranks need as many task slots .* have 2\. Ask for num_proc=2 or less"),
        ({"num_proc": 0}, "num_proc must be a whole number of ranks, 1 or more; received 0"),
        ({"fn": 3}, "fn must be a function; received 3"),
        ({"args": 3}, "args must be a tuple"),
        ({"kwargs": {1: 2}}, "kwargs must map names"),
        ({"executable": 3}, "executable must be the path of a Python interpreter; received 3"),
        ({"use_mpi": True}, "connect without MPI"),
        ({"extra_mpi_args": "-x A"}, "connect without MPI"),
        ({"start_timeout": -1}, "start_timeout must be a number of seconds, more than 0; received -1"),
        ({"env": {"MINE": 3}}, "env must map names to texts"),
        ({"nics": "nothing0"}, "nothing0"),
        ({"nics": 3}, "nics must be a text or a list of texts; received 3"),
        ({"stdout": "out.txt"}, "stdout must be an open text file or stream; received 'out.txt'"),
        ({"args": (threading.Lock(),)}, "cannot be pickled"),
    ],
)
def test_what_is_refused(context, given, text):
    with pytest.raises(ConfigError, match=text):
        tfdist.spark.run(**{"fn": lambda: None, "num_proc": 1, **given})
    assert not context.statusTracker().getActiveJobsIds()


def test_a_driver_that_cannot_be_reached(context, monkeypatch):
    """The agents give up after 20 s, and with them the launcher, which would wait for ten minutes."""
    monkeypatch.setattr("tfdist.spark.job._driver", lambda _: "127.0.0.9")
    monkeypatch.setattr("tfdist.spark.job._door", lambda *_: mesh.listen("127.0.0.1"))
    begin = time.monotonic()
    with pytest.raises(RankError, match=r"did not run the tasks of .*: task \d: no launcher at 127\.0\.0\.9"):
        tfdist.spark.run(lambda: None, num_proc=2, stderr=io.StringIO())
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("elastic", [False, True], ids=["run", "run_elastic"])
def test_one_task_that_cannot_reach_the_driver(context, monkeypatch, elastic):
    """Without elastic the job cannot begin, whatever the others wait for."""
    served = stage._served

    def serve_apart(offer, *others):
        apart = served(replace(offer, launcher="127.0.0.9:9"), *others)
        each = served(offer, *others)
        return lambda numbers: (apart if (own := list(numbers)) == [1] else each)(own)

    monkeypatch.setattr(stage, "_served", serve_apart)
    begin = time.monotonic()
    start, seconds = (tfdist.spark.run_elastic, 30) if elastic else (tfdist.spark.run, 600)
    with pytest.raises(RankError, match=r"task 1: no launcher at 127\.0\.0\.9"):
        start(lambda: None, num_proc=2, start_timeout=seconds, stderr=io.StringIO())
    assert time.monotonic() - begin < 60


def test_files_of_the_application(context, tmp_path, monkeypatch):
    """Ranks find what Spark has brought to their task, without a folder of the driver."""
    (tmp_path / "brought.py").write_text("WHERE = __file__\n")
    context.addPyFile(str(tmp_path / "brought.py"))
    root = SparkFiles.getRootDirectory()
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != root])
    found = tfdist.spark.run(lambda: __import__("brought").WHERE, num_proc=2)
    assert len(found) == 2 and not any(each.startswith((root, str(tmp_path))) for each in found)


def test_a_python_without_tfdist(context, monkeypatch):
    monkeypatch.setattr(context, "pythonExec", "/usr/bin/python3")
    with pytest.raises(RankError, match=r"Spark did not run the tasks of .*: .*") as caught:
        tfdist.spark.run(lambda: None, num_proc=1, stderr=io.StringIO())
    assert "launcher" not in str(caught.value)


def test_dynamic_allocation(context, monkeypatch):
    conf = context.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(context, "getConf", lambda: conf)
    with pytest.raises(ConfigError, match=r"--conf spark\.dynamicAllocation\.enabled=false"):
        tfdist.spark.run(lambda: None, num_proc=1)


@pytest.mark.parametrize("np", [2, 0, -2])
def test_runner(context, np, capfd):
    runner = tfdist.spark.Runner(np=np, driver_log_verbosity="log_callback_only")
    found = runner.run(lambda number: place() | {"number": number}, number=7)
    assert found["rank"] == 0 and found["sum"] == [3.0] * 3 and found["number"] == 7
    assert "prints" not in capfd.readouterr().out


def test_runner_refuses():
    with pytest.raises(ConfigError, match="np must be a whole number; received '2'"):
        tfdist.spark.Runner(np="2")
    with pytest.raises(ConfigError, match="driver_log_verbosity must be 'all' or 'log_callback_only'"):
        tfdist.spark.Runner(np=2, driver_log_verbosity="some")


def test_a_data_service_on_executors(context, tmp_path, wait_until):
    functions_of_ranks.check_data_service(
        tmp_path / "compute.json", lambda fn, args: tfdist.spark.run(fn, args, num_proc=2), wait_until
    )
