"""An application on two executors with a slot each, as processes of their own."""

import os
import sys

import functions_of_ranks
import pytest


@pytest.fixture(scope="session")
def context():
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executorEnv.PYTEST_TFDIST_ALL_PACKAGES", "1")  # Estimators need pandas there
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session.sparkContext
    java = session.sparkContext._gateway.proc
    session.stop()
    java.stdin.close()  # it ends with that, not before
    java.wait(30)


@pytest.fixture
def nothing_is_left(context, processes, wait_until):
    """After a test no rank, no agent and no job of Spark is left."""
    yield
    own = (functions_of_ranks.AGENT, functions_of_ranks.WORKER)
    wait_until(lambda: not any(map(processes, own)), seconds=5, what="the end of all ranks and agents")
    assert not context.statusTracker().getActiveJobsIds()
