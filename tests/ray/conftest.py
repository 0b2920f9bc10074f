"""A cluster of two nodes with a CPU each, which are processes of this machine."""

import threading
import time

import functions_of_ranks
import pytest

from tfdist.errors import RankError


@pytest.fixture(scope="session")
def nodes():
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def nothing_is_left(nodes, processes, wait_until):
    """After a test no rank, no agent, no actor and no placement group is left."""
    import ray

    yield
    own = (functions_of_ranks.AGENT, functions_of_ranks.WORKER)
    wait_until(lambda: not any(map(processes, own)), seconds=5, what="the end of all ranks and agents")
    wait_until(lambda: not processes("ray::Place"), seconds=10, what="the end of all actors")
    assert {group["state"] for group in ray.util.placement_group_table().values()} <= {"REMOVED"}


@pytest.fixture
def error_of_shutdown(tmp_path, wait_until):
    """Called with an executor and a condition: shuts it down when that holds in a call; returns what that raised."""

    def shut_down(executor, condition, what):
        errors = []

        def call():
            try:
                executor.run(functions_of_ranks.wait, args=(str(tmp_path),))
            except RankError as error:
                errors.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        wait_until(condition, seconds=60, what=what)
        begin = time.monotonic()
        executor.shutdown()
        thread.join(10)
        assert time.monotonic() - begin < 10
        (said,) = errors
        return said

    return shut_down
