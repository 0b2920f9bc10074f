"""Training on the executors of an Apache Spark application: Horovod's `horovod.spark`, without MPI and ssh.

Importing this package does not import pyspark; the functions do.
"""

from __future__ import annotations

from tfdist.spark.job import run, run_elastic
from tfdist.spark.runner import Runner

__all__ = ["Runner", "run", "run_elastic"]
