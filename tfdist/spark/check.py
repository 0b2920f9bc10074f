"""What can be known before tasks are submitted: the application, and whether it has room for all ranks at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tfdist.errors import BuildError, ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext

# Executors come one after the other when an application starts.
_SLOTS_S = 20.0
_LOOK_S = 0.2
_DYNAMIC = "spark.dynamicAllocation.enabled"


def application(caller: str) -> SparkContext:
    """The running application. Raises ConfigError if there is none, BuildError without pyspark."""
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise BuildError(f"{caller} needs pyspark: {error}. Install it: pip install 'tfdist[spark]'") from None
    context = SparkContext._active_spark_context
    if context is None:
        raise ConfigError(
            f"{caller}: there is no running Spark application in this process. Make one first: "
            "pyspark.sql.SparkSession.builder.getOrCreate()"
        )
    return context


def ranks(caller: str, context: SparkContext, num_proc: int | None) -> int:
    """The number of ranks, for which there is room. Raises ConfigError."""
    wanted = context.defaultParallelism if num_proc is None else num_proc
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"{caller}: num_proc must be a whole number of ranks, 1 or more; received {wanted!r}.")
    if context.getConf().get(_DYNAMIC, "false").lower() == "true":
        raise ConfigError(
            f"{caller}: {_DYNAMIC} is true, so executors may go while they train, and Spark runs no barrier stage. "
            f"Start the application with --conf {_DYNAMIC}=false"
        )
    slots = _slots(context, wanted)
    if slots < wanted:
        raise ConfigError(
            f"{caller}: {wanted} ranks need as many task slots at the same time, but the executors have {slots}. Ask "
            f"for num_proc={slots} or less, or start the application with more: spark.executor.instances (or "
            "spark.cores.max) times spark.executor.cores, divided by spark.task.cpus; local[N] has N"
        )
    return wanted


def slots(context: SparkContext) -> int:
    """How many tasks can run at the same time, on the executors that have come."""
    scala = context._jsc.sc()  # Spark has no other way to ask that
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _slots(context: SparkContext, wanted: int) -> int:
    until = time.monotonic() + (0.0 if str(context.master).startswith("local[") else _SLOTS_S)
    while (found := slots(context)) < wanted and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return found
