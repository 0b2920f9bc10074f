"""An elastic job on Spark's executors: one of them is killed, tasks come later, and what is refused."""

import io
import threading

import functions_of_ranks
import pytest

import tfdist.spark
from tfdist.errors import ConfigError, RankError

pytestmark = pytest.mark.usefixtures("nothing_is_left")

EXECUTOR = "CoarseGrainedExecutorBackend --driver-url"


def test_an_executor_that_is_killed_is_replaced(processes, tmp_path, wait_until):
    """All samples count once, whoever takes them: the weights are those of one process."""

    def kill():
        wait_until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, seconds=120, what="both ranks")
        functions_of_ranks.kill_above(tmp_path, processes(EXECUTOR))

    thread = threading.Thread(target=kill)
    thread.start()
    out = io.StringIO()
    results = tfdist.spark.run_elastic(
        functions_of_ranks.train_elastic,
        (str(tmp_path), {5: "killed", 20: "others"}),
        num_proc=2,
        stdout=out,
        stderr=out,
    )
    thread.join(10)
    assert len(results) == 2, out.getvalue()
    functions_of_ranks.check_elastic(results, (5, 2), (20, 1), (30, 2))


def test_a_task_that_comes_later_joins(context, tmp_path):
    """There are two slots: the second rank joins, and the third has no place."""
    results = tfdist.spark.run_elastic(
        functions_of_ranks.train_elastic,
        (str(tmp_path), {3: "others"}),
        num_proc=1,
        max_num_proc=3,
        stderr=io.StringIO(),
    )
    assert len(results) == 2
    functions_of_ranks.check_elastic(results, (3, 1), (30, 2))


def test_errors_of_ranks():
    def fail():
        import tfdist

        tfdist.init()
        tfdist.barrier()
        raise ZeroDivisionError(f"of rank {tfdist.rank()}")

    with pytest.raises(ZeroDivisionError, match="of rank"):
        tfdist.spark.run_elastic(fail, num_proc=2, stderr=io.StringIO())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_proc": 3}, r"3 ranks need as many task slots .* have 2\. Ask for num_proc=2 or less"),
        ({"num_proc": 0}, "num_proc must be a whole number of ranks, 1 or more; received 0"),
        ({"min_num_proc": "1"}, "min_num_proc must be a whole number of ranks, 1 or more; received '1'"),
        ({"max_num_proc": 1, "num_proc": 2}, "min_num_proc <= num_proc <= max_num_proc; received 1, 2, 1"),
        ({"min_num_proc": 2}, "min_num_proc <= num_proc <= max_num_proc; received 2, 1, 1"),
        ({"elastic_timeout": 3}, "elastic_timeout must be None, because ranks that live never wait for others"),
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
