"""Ranks on a Ray cluster that live from call to call: results, errors, lost actors, and what is refused."""

import os
import signal
import sys
import threading
import time

import cloudpickle
import functions_of_ranks
import numpy as np
import pytest

import tfdist.ray
from tfdist.errors import ConfigError, RankError

pytestmark = pytest.mark.usefixtures("nothing_is_left")

ACTOR = "ray::Place"


# Nodes cannot import this module, so it is sent with what is in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def started():
    """Called with an executor's arguments; it is started, and shut down afterwards."""
    made = []

    def start(given=None, **arguments):
        made.append(tfdist.ray.RayExecutor(**arguments))
        made[-1].start(**(given or {}))
        return made[-1]

    yield start
    for executor in made:
        executor.shutdown()


def place(tag):
    import tfdist

    tfdist.init()
    own = np.full(3, tfdist.rank() + 1.0, "float32")
    tfdist.ray.log({"tag": tag, "rank": tfdist.rank()})
    print("rank", tfdist.rank(), "prints")
    return {
        "rank": tfdist.rank(),
        "local": (tfdist.local_rank(), tfdist.local_size()),
        "sum": tfdist.allreduce(own, op=tfdist.Sum).numpy().tolist(),
        "process": os.getpid(),
        "MINE": os.environ.get("MINE"),
        "node": int(os.environ["RAY_RAYLET_PID"]),
    }


def test_calls_of_the_same_ranks(started, capfd):
    import ray

    settings = tfdist.ray.RayExecutor.create_settings(timeout_s=60)
    executor = started({"extra_env_vars": {"MINE": "x y"}}, settings=settings, num_workers=2)
    logged = []
    first = executor.run(place, args=(3,), callbacks=[logged.append])
    assert [each["rank"] for each in first] == [0, 1]
    assert [each["local"] for each in first] == [(0, 2), (1, 2)], "both nodes are this machine"
    assert all(each["sum"] == [3.0] * 3 and each["MINE"] == "x y" for each in first)
    assert len({each["node"] for each in first}) == 2
    assert logged == [{"tag": 3, "rank": 0}]
    assert executor.run(place, kwargs={"tag": 4}) == first == ray.get(executor.run_remote(place, args=(5,)))
    assert executor.execute(lambda own: own) == [None, None]
    assert sorted(line for line in capfd.readouterr().out.splitlines() if "prints" in line) == [
        *["[0] rank 0 prints"] * 3,
        *["[1] rank 1 prints"] * 3,
    ]


def test_the_environment_is_that_of_the_actor(started, monkeypatch):
    import ray

    def variables():
        return {name: os.environ.get(name) for name in given}

    given = {"CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "77", "LD_LIBRARY_PATH": "/x", "NCCL_MINE": "driver's"}
    expected = ray.get(ray.remote(variables).remote())
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    executor = started({"extra_env_vars": {"LD_LIBRARY_PATH": "/y"}}, num_workers=1)
    assert expected.items().isdisjoint(given.items())
    assert executor.run(variables) == [expected | {"LD_LIBRARY_PATH": "/y", "NCCL_MINE": "driver's"}]


class Model:
    """Made once on each rank."""

    def __init__(self, start, step):
        self.value, self.step = start, step

    def train(self):
        self.value += self.step
        return self.value


def test_an_object_on_each_rank(started):
    given = {"executable_cls": Model, "executable_args": [5], "executable_kwargs": {"step": 2}}
    executor = started(given, num_hosts=2, num_workers_per_host=1)
    assert executor.execute(lambda model: model.train()) == [7, 7]
    assert executor.execute_single(lambda model: model.train()) == 9
    assert executor.execute(lambda model: model.train()) == [11, 9]


def test_a_fit_equals_that_of_one_process(started):
    executor = started(num_workers=2)
    one, other = executor.run(functions_of_ranks.train, args=(2,))
    assert one == other
    executor.shutdown()
    (alone,) = started(num_workers=1).run(functions_of_ranks.train, args=(1,))
    for weight, expected in zip(one, alone, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=1e-6)


def test_an_exception_of_a_rank(started):
    """The other one waits for it, so both are ended."""
    executor = started(num_workers=2)
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        executor.run(functions_of_ranks.fail, args=("mine",))
    cause = caught.value.__cause__
    assert isinstance(cause, RankError) and cause.rank == 1
    assert "in fail" in str(cause) and f"rank 1 of 2 on {os.uname().nodename}" in str(cause)
    with pytest.raises(RankError, match="its ranks have ended, because fail or a callback of it ended with ZeroDiv"):
        executor.run(place, args=(1,))
    executor.shutdown()
    executor.start()
    assert len(executor.run(place, args=(1,))) == 2


def test_an_exception_by_reference(started):
    import ray

    def divide():
        return 1 // 0

    with pytest.raises(ZeroDivisionError):
        ray.get(started(num_workers=1).run_remote(divide))


def test_a_failure_by_reference_ends_the_others(started):
    """Rank 0 waits for rank 1, and would do so for ever."""
    import ray

    executor = started(num_workers=2)
    first, second = executor.run_remote(functions_of_ranks.fail, args=("mine",))
    with pytest.raises(ZeroDivisionError, match="mine"):
        ray.get(second, timeout=60)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(first, timeout=60)
    with pytest.raises(RankError, match="its ranks have ended, because a call of run_remote failed"):
        executor.run(len, args=([],))


def test_calls_of_several_threads_come_in_one_order(started):
    def add(number):
        import tfdist

        tfdist.init()
        return tfdist.allreduce(np.float32(number), op=tfdist.Sum, name=f"number {number}").numpy()

    executor, found = started(num_workers=2), []
    threads = [
        threading.Thread(target=lambda number=number: found.append((number, executor.run(add, args=(number,)))))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == [(number, [2 * number] * 2) for number in range(8)]


def test_a_network_that_is_not_there(started):
    begin = time.monotonic()
    with pytest.raises(ConfigError, match="nothing0"):
        started(settings=tfdist.ray.RayExecutor.create_settings(nics="nothing0"), num_workers=1)
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize("who", ["actor", "rank"])
def test_who_is_killed(started, processes, tmp_path, wait_until, who):
    times = []

    def kill():
        wait_until(
            lambda: all((tmp_path / name).exists() for name in ("here-0", "here-1")), seconds=120, what="both ranks"
        )
        rank = int((tmp_path / "here-1").read_text())
        times.append(time.monotonic())
        os.kill(rank if who == "rank" else processes(ACTOR)[0], signal.SIGKILL)

    executor = started(num_workers=2)
    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(RankError, match=r"rank 1 .*(SIGKILL|was lost)|was lost"):
        executor.run(functions_of_ranks.wait, args=(str(tmp_path),))
    assert time.monotonic() - times[0] < 20
    thread.join(10)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "give num_workers, num_hosts, or min_workers if elastic; received nothing"),
        ({"num_workers": 2, "num_hosts": 2}, "give num_workers, num_hosts, .* received num_workers=2, num_hosts=2"),
        ({"settings": 3, "num_workers": 1}, r"settings must come from create_settings\(\); received 3"),
        ({"num_workers": 0}, "num_workers must be a whole number, 1 or more; received 0"),
        ({"num_workers": "2"}, "num_workers must be a whole number, 1 or more; received '2'"),
        ({"num_workers": 2, "cpus_per_worker": 0}, "cpus_per_worker must be a whole number, 1 or more; received 0"),
        (
            {"num_workers": 2, "gpus_per_worker": 1},
            "gpus_per_worker needs use_gpu=True; received num_workers=2, gpus_per_worker=1",
        ),
        (
            {"min_workers": 2, "cooldown_range": 5},
            r"cooldown_range must be \(first, most\), in seconds, with 0 < first <= most; received .*cooldown_range=5",
        ),
        ({"min_workers": 2, "cooldown_range": ("a", 3)}, r"cooldown_range must be \(first, most\)"),
        ({"min_workers": 2, "cooldown_range": (3, 2)}, r"cooldown_range must be \(first, most\)"),
        ({"num_workers": 1, "num_workers_per_host": 3}, "num_workers_per_host needs num_hosts"),
        ({"min_workers": 1, "num_workers_per_host": 3}, "num_workers_per_host needs num_hosts"),
        ({"num_workers": 1, "use_current_placement_group": "no"}, "use_current_placement_group must be true or false"),
        ({"num_workers": 2, "max_workers": 3}, "max_workers and cooldown_range need min_workers"),
        ({"num_workers": 2, "cooldown_range": (1, 2)}, "max_workers and cooldown_range need min_workers"),
        (
            {"min_workers": 2, "max_workers": 1},
            "min_workers <= num_workers <= max_workers; received min_workers=2, max_workers=1",
        ),
        ({"min_workers": 2, "num_hosts": 1}, "num_hosts and min_workers cannot be combined"),
        ({"min_workers": 1, "reset_limit": 3}, "reset_limit must be None, because ranks are never started anew"),
        ({"min_workers": 1, "elastic_timeout": 0}, "elastic_timeout must be None, because ranks that live never wait"),
        ({"num_workers": 1, "override_discovery": False}, "override_discovery must be true"),
    ],
)
def test_arguments_that_are_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        tfdist.ray.RayExecutor(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"timeout_s": 0}, "timeout_s must be a number of seconds, more than 0; received 0"),
        ({"placement_group_timeout_s": "3"}, "placement_group_timeout_s must be a number of seconds"),
        ({"nics": 3}, "nics must be a text or a list of texts; received 3"),
        ({"ssh_str": "key"}, "nothing here uses ssh; omit ssh_identity_file and ssh_str"),
    ],
)
def test_settings_that_are_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        tfdist.ray.RayExecutor.create_settings(**given)


@pytest.mark.parametrize("given", [{"num_workers": 3}, {"num_hosts": 1, "num_workers_per_host": 2}])
def test_there_is_no_room(given):
    settings = tfdist.ray.RayExecutor.create_settings(placement_group_timeout_s=2)
    executor = tfdist.ray.RayExecutor(settings, **given)
    with pytest.raises(
        ConfigError,
        match=r"no room for \d actors of 1 CPU.* within 2 s; the cluster has 2 CPU \(2 free\).* 2 nodes",
    ):
        executor.start()


def test_number_of_nodes_in_a_placement_group(nodes):
    import ray

    def start():
        tfdist.ray.RayExecutor(num_hosts=1, num_workers_per_host=1).start()

    group = ray.util.placement_group([{"CPU": 1}])
    options = {
        "num_cpus": 1,
        "scheduling_strategy": ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group),
    }
    options["scheduling_strategy"].placement_group_capture_child_tasks = True
    with pytest.raises(ConfigError, match="num_hosts cannot be had in the placement group of this process"):
        ray.get(ray.remote(start).options(**options).remote())
    ray.util.remove_placement_group(group)


def test_calls_that_are_refused(started):
    executor = tfdist.ray.RayExecutor(num_workers=1)
    with pytest.raises(ConfigError, match=r"it has not started; call start\(\) first"):
        executor.run(len)
    with pytest.raises(ConfigError, match="extra_env_vars must map names to texts"):
        executor.start(extra_env_vars={"MINE": 3})
    for name, text in (("A=B", "cannot be the name"), ("TFDIST_RANK", "cannot be set here"), ("PATH", "cannot be set")):
        with pytest.raises(ConfigError, match=text):
            executor.start(extra_env_vars={name: "3"})
    with pytest.raises(ConfigError, match="executable_cls must be a class; received 3"):
        executor.start(executable_cls=3)
    executor.shutdown()
    executor = started(num_workers=1)
    with pytest.raises(ConfigError, match="it has started already"):
        executor.start()
    with pytest.raises(ConfigError, match="run: fn must be a function; received 3"):
        executor.run(3)
    with pytest.raises(ConfigError, match="cannot be pickled"):
        executor.run(len, args=(threading.Lock(),))
    with pytest.raises(ConfigError, match="callbacks must be a list of functions; received <"):
        executor.run(len, args=([],), callbacks=print)
    import ray

    with pytest.raises(ConfigError, match=r"received ObjectRef\(.*, which ranks cannot use"):
        executor.run(len, args=(ray.put(3),))
    assert executor.run(len, args=([],)) == [0], "it is still there"


def test_without_ray(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"Ray does not run in this process\. Call ray\.init\(\) first"):
        tfdist.ray.RayExecutor(num_workers=1).start()


def test_a_data_service_in_actors(started, tmp_path, wait_until):
    executor = started(num_workers=2)
    functions_of_ranks.check_data_service(tmp_path / "compute.json", executor.run, wait_until)
    assert executor.run(len, args=([],)) == [0, 0], "the ranks are still there"


def test_an_executor_that_nobody_has_gives_its_room_back(started):
    tfdist.ray.RayExecutor(num_workers=2).start()
    assert started(num_workers=2).run(len, args=([],)) == [0, 0]


def test_shutdown_during_a_call(started, tmp_path, error_of_shutdown):
    said = error_of_shutdown(started(num_workers=2), lambda: len(list(tmp_path.iterdir())) == 2, "both ranks")
    assert said == "tfdist.ray.RayExecutor: wait did not end, because it was shut down."


def test_many_values_are_logged_without_a_trace(started, capfd):
    def log_many():
        import tfdist

        tfdist.init()
        for number in range(200):
            tfdist.ray.log({"number": number})
        with pytest.raises(ConfigError, match="expected names and values"):
            tfdist.ray.log(3.5)

    found = []
    started(num_workers=1).run(log_many, callbacks=[found.append])
    assert found == [{"number": number} for number in range(200)]
