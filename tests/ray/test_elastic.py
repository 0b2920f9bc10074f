"""Elastic jobs on a Ray cluster: an actor is killed, and a node comes."""

import os
import sys
import threading

import cloudpickle
import functions_of_ranks
import pytest
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import tfdist.ray
from tfdist.errors import ConfigError, RankError
from tfdist.ray.job import logs

pytestmark = pytest.mark.usefixtures("nothing_is_left")

ACTOR = "ray::Place"


# Nodes cannot import this module, so it is sent with what is in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


def test_shutdown_during_a_call(nodes, tmp_path, error_of_shutdown):
    executor = tfdist.ray.RayExecutor(min_workers=2)
    executor.start()
    said = error_of_shutdown(executor, lambda: len(list(tmp_path.iterdir())) == 2, "both ranks")
    assert said == "tfdist.ray.RayExecutor: wait did not end, because it was shut down."


def test_shutdown_during_a_wait_for_room(nodes, error_of_shutdown):
    executor = tfdist.ray.RayExecutor(min_workers=9)
    executor.start()
    said = error_of_shutdown(executor, lambda: executor._job._calls, "the call")
    assert said == "tfdist.ray.RayExecutor: it was shut down while it waited for room"


def test_values_for_callbacks_wait_on_the_node_of_the_driver(nodes):
    """Ray would choose any, and the loss of that node would end a job that goes on without it."""
    import ray

    more = [nodes.add_node(num_cpus=0) for _ in range(3)]
    try:
        for _ in range(6):
            with logs(ray, [print]) as (values, _drain):
                values.put(b"")
                where = ray._private.state.actors(values.actor._actor_id.hex())["Address"]["NodeID"]
                assert where == ray.get_runtime_context().get_node_id()
    finally:
        for node in more:
            nodes.remove_node(node)


@pytest.mark.parametrize("takes_current", [True, False])
def test_in_or_beside_the_placement_group_of_the_process(nodes, takes_current):
    """As in a trial of Ray Tune, whose group takes in what its process starts."""
    import ray

    def trial():
        executor = tfdist.ray.RayExecutor(min_workers=1, use_current_placement_group=takes_current)
        executor.start()
        try:
            return os.environ["RAY_RAYLET_PID"], *executor.run(lambda: os.environ["RAY_RAYLET_PID"])
        finally:
            executor.shutdown()

    group = ray.util.placement_group([{"CPU": 1}])  # of one node, so that the other has room
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    try:
        one, other = ray.get(ray.remote(trial).options(num_cpus=0, scheduling_strategy=strategy).remote())
    finally:
        ray.util.remove_placement_group(group)
    assert (one == other) == takes_current


def test_what_an_elastic_executor_has_not():
    executor = tfdist.ray.RayExecutor(min_workers=1)
    with pytest.raises(ConfigError, match="omit executable_cls, or min_workers"):
        executor.start(executable_cls=dict)
    executor.start()
    for method in ("execute", "execute_single", "run_remote"):
        with pytest.raises(ConfigError, match=rf"{method}: an elastic executor has run\(\) only"):
            getattr(executor, method)(len)
    executor.shutdown()
