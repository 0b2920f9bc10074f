"""A stage of Spark in which each task is an agent: submitted by a thread, and ended with the job."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfdist.launch.function.embedded import Offer
from tfdist.spark import task
from tfdist.spark.task import Ended

if TYPE_CHECKING:
    from pyspark import SparkContext

_LINE = "\n"
# Where the Python part of an error ends.
_JAVA_TRACE = "\n\tat org.apache"
# How long the launcher may take to tell the user what happened, after Spark has told us.
_GRACE_S = 6.0
# After the job: the agents end by themselves, and their tasks with them, if there was one.
_END_S = 10.0
_FAILED_S = 3.0
_LOOK_S = 0.2


class Stage:
    """Use as a context manager. The tasks are of a barrier stage: all run at the same time, or none.

    Those of an elastic job are not: each runs when there is room for it.

    Args:
        context: The application.
        offer: What each agent needs.
        tasks: How many there are.
        elastic: Whether they may come and go.
    """

    def __init__(self, context: SparkContext, offer: Offer, tasks: int, elastic: bool) -> None:
        self._context, self._offer, self._tasks, self._elastic = context, offer, tasks, elastic
        self._group = f"tfdist-{secrets.token_hex(8)}"
        # Each task adds to it when it ends, before the stage has.
        self._ended = context.accumulator([], _listed())
        self.error: Exception | None = None
        self._failed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="tfdist-spark", daemon=True)

    def __enter__(self) -> Stage:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        until = time.monotonic() + (_END_S if kind is None else _FAILED_S)
        while not self.wait(_LOOK_S) and time.monotonic() < until and self.active:
            pass
        if not self.wait(0.0):
            self._context.cancelJobGroup(self._group)
            self.wait(_END_S)

    @property
    def active(self) -> int:
        """How many tasks run; those that wait for room have nothing to end."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def is_wanted(self) -> bool:
        """Whether the launcher should go on: no task has failed, or it only has to say what that did."""
        if not self._failed_at and not self._elastic and any(each.was_alone for each in self._ended.value):
            self._failed_at = time.monotonic()
        return not self._failed_at or time.monotonic() < self._failed_at + _GRACE_S

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the tasks; whether they have ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def said(self) -> str:
        """The last that a failed agent said, as when it cannot reach the driver; empty if none has failed."""
        return self._said([each for each in self._ended.value if each.status])

    @property
    def said_alone(self) -> str:
        """The same of an agent that never reached the driver."""
        return self._said([each for each in self._ended.value if each.was_alone])

    @staticmethod
    def _said(ended: Sequence[Ended]) -> str:
        first = min(ended, key=lambda each: not each.was_alone, default=None)
        return "" if first is None else f"task {first.task}: {first.said.rpartition(_LINE)[2]}"

    @property
    def problem(self) -> str:
        """What Spark says about its failure, in a line; empty if it has not failed."""
        if self.error is None:
            return ""
        java = getattr(self.error, "java_exception", None)
        text = str(java.getMessage() if java is not None else self.error)
        if "No module named 'tfdist'" in text:
            python = self._context.pythonExec
            return (
                f"the Python of its tasks, {python!r}, has no tfdist. Install tfdist there, or set PYSPARK_PYTHON to "
                "an interpreter that has it, before the application starts"
            )
        return " ".join(text.partition("Driver stacktrace:")[0].partition(_JAVA_TRACE)[0].split())

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "tfdist: ranks of a training", interruptOnCancel=True)
            tasks = self._context.parallelize(range(self._tasks), self._tasks)
            serve = _served(self._offer, self._ended, self._elastic)
            (tasks if self._elastic else tasks.barrier()).mapPartitions(serve).collect()
            if self.said:
                self._failed_at = self._failed_at or time.monotonic()
        except Exception as error:  # noqa: BLE001  (told by whoever waits)
            self.error, self._failed_at = error, self._failed_at or time.monotonic()
        finally:
            with contextlib.suppress(Exception):  # the context was stopped
                self._context.setLocalProperty("spark.jobGroup.id", None)


def _listed() -> Any:
    """How Spark adds up lists."""
    from pyspark.accumulators import AccumulatorParam

    class Listed(AccumulatorParam[list[Ended]]):
        def zero(self, _value: list[Ended]) -> list[Ended]:
            return []

        def addInPlace(self, one: list[Ended], other: list[Ended]) -> list[Ended]:  # noqa: N802  (Spark's name)
            return one + other

    return Listed()


def _served(offer: Offer, ended: Any, elastic: bool) -> Any:
    def serve(numbers: Any) -> Any:
        from pyspark import BarrierTaskContext, TaskContext

        context = (TaskContext if elastic else BarrierTaskContext).get()
        for number in numbers:
            ended.add(task.serve(offer, number, context, elastic))
        return ()

    return serve
