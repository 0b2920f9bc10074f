"""What can be known before tasks are submitted: the application, and whether it has room for all ranks at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from tfdist.errors import BuildError, ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext

# Executors come one after the other when an application starts.
_SLOTS_S = 20.0
_LOOK_S = 0.2
_DYNAMIC = "spark.dynamicAllocation.enabled"
_SPECULATION = "spark.speculation"


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
    """The number of ranks of a barrier stage, for which there is room. Raises ConfigError."""
    wanted = _number(caller, "num_proc", context.defaultParallelism if num_proc is None else num_proc)
    if is_set(context, _DYNAMIC):
        raise ConfigError(
            f"{caller}: {_DYNAMIC} is true, so executors may go while they train, and Spark runs no barrier stage. "
            f"Start the application with --conf {_DYNAMIC}=false, or use tfdist.spark.run_elastic"
        )
    _check_slots(caller, context, wanted)
    return wanted


class Sizes(NamedTuple):
    """The numbers of ranks of a job: the fewest that may continue, those to start with, and the most."""

    least: int
    start: int
    most: int


def sizes(caller: str, context: SparkContext, least: int | None, start: int | None, most: int | None) -> Sizes:
    """Those of an elastic job, given what its user says. Raises ConfigError."""
    first = _number(caller, "num_proc", context.defaultParallelism if start is None else start)
    found = Sizes(
        _number(caller, "min_num_proc", 1 if least is None else least),
        first,
        _number(caller, "max_num_proc", first if most is None else most),
    )
    if not found.least <= found.start <= found.most:
        raise ConfigError(
            f"{caller}: expected min_num_proc <= num_proc <= max_num_proc; received {', '.join(map(str, found))}."
        )
    if is_set(context, _SPECULATION):
        raise ConfigError(
            f"{caller}: {_SPECULATION} is true, so Spark would start tasks twice that take longer than others. Start "
            f"the application with --conf {_SPECULATION}=false"
        )
    if not is_set(context, _DYNAMIC):  # which adds executors for tasks that wait
        _check_slots(caller, context, found.start)
    return found


def is_set(context: SparkContext, name: str) -> bool:
    """Whether a setting of the application is true."""
    return str(context.getConf().get(name, "false")).lower() == "true"


def _number(caller: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{caller}: {name} must be a whole number of ranks, 1 or more; received {value!r}.")
    return value


def _check_slots(caller: str, context: SparkContext, wanted: int) -> None:
    there = _slots(context, wanted)
    if there < wanted:
        raise ConfigError(
            f"{caller}: {wanted} ranks need as many task slots at the same time, but the executors have {there}. Ask "
            f"for num_proc={there} or less, or start the application with more: spark.executor.instances (or "
            "spark.cores.max) times spark.executor.cores, divided by spark.task.cpus; local[N] has N"
        )


def slots(context: SparkContext) -> int:
    """How many tasks can run at the same time, on the executors that have come."""
    scala = context._jsc.sc()  # Spark has no other way to ask that
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _slots(context: SparkContext, wanted: int) -> int:
    until = time.monotonic() + (0.0 if str(context.master).startswith("local[") else _SLOTS_S)
    while (found := slots(context)) < wanted and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return found
