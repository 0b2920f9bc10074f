"""Elastic jobs on a Ray cluster: an actor is killed, and a node comes."""

import threading

import functions_of_ranks
import pytest

import tfdist.ray
from tfdist.errors import ConfigError, RankError

pytestmark = pytest.mark.usefixtures("nothing_is_left")

ACTOR = "ray::Place"


def run(*arguments, callbacks=(), **given):
    executor = tfdist.ray.RayExecutor(**given)
    executor.start()
    try:
        return executor.run(functions_of_ranks.train_elastic, arguments, callbacks=callbacks)
    finally:
        executor.shutdown()


def test_an_actor_that_is_killed_is_replaced(processes, tmp_path, wait_until):
    """All samples count once, whoever takes them: the weights are those of one process."""

    def kill():
        wait_until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, seconds=120, what="both ranks")
        functions_of_ranks.kill_above(tmp_path, processes(ACTOR))

    thread = threading.Thread(target=kill)
    thread.start()
    logged = []
    waits = {5: "killed", 20: "others"}
    results = run(str(tmp_path), waits, callbacks=[logged.append], num_workers=2, min_workers=1)
    thread.join(10)
    assert len(results) == 2
    functions_of_ranks.check_elastic(results, (5, 2), (20, 1), (30, 2))
    assert [(each["step"], each["size"]) for each in logged] == results[0][1], "rank 0 is the same process all the time"


def test_a_node_that_comes_is_used(nodes, tmp_path, wait_until):
    import ray

    @ray.remote(num_cpus=1)
    class Holder:
        def there(self):
            return True

    holder = Holder.remote()  # so there is one free slot
    assert ray.get(holder.there.remote())
    added, found = [], []
    thread = threading.Thread(
        target=lambda: found.append(run(str(tmp_path), {3: "others"}, min_workers=1, max_workers=2))
    )
    thread.start()
    try:
        wait_until((tmp_path / "alone").exists, seconds=120, what="a rank without others")
        added.append(nodes.add_node(num_cpus=1))  # which Ray does in the main thread only
        thread.join(120)
    finally:
        ray.kill(holder)
        for node in added:
            nodes.remove_node(node)
    (results,) = found
    assert len(results) == 2
    functions_of_ranks.check_elastic(results, (3, 1), (30, 2))


def test_errors_of_all_ranks():
    def fail():
        import tfdist

        tfdist.init()
        tfdist.barrier()
        raise ZeroDivisionError("of a rank")

    executor = tfdist.ray.RayExecutor(min_workers=1, max_workers=2)
    executor.start()
    with pytest.raises(ZeroDivisionError, match="of a rank") as caught:
        executor.run(fail)
    assert isinstance(caught.value.__cause__, RankError)
    assert executor.run(lambda: 3) in ([3], [3, 3]), "each call is a job of its own"
    executor.shutdown()


def test_what_an_elastic_executor_has_not():
    executor = tfdist.ray.RayExecutor(min_workers=1)
    with pytest.raises(ConfigError, match="omit executable_cls, or min_workers"):
        executor.start(executable_cls=dict)
    executor.start()
    for method in ("execute", "execute_single", "run_remote"):
        with pytest.raises(ConfigError, match=rf"{method}: an elastic executor has run\(\) only"):
            getattr(executor, method)(len)
    executor.shutdown()
