"""`tfdist.spark.Runner`: `run` in the shape of Databricks' HorovodRunner."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tfdist.errors import ConfigError
from tfdist.launch.function import function_job, parcel
from tfdist.launch.function.session import Setting
from tfdist.spark import check, job

_CALLER = "tfdist.spark.Runner"
_ALL, _NOTHING = "all", "log_callback_only"


class Runner:
    """Runs a function on many ranks and returns what rank 0 returns.

    Args:
        np: Number of ranks on Spark's executors; 0 for as many as they have slots now. A negative number runs as many
            processes in the driver, to try a function out, without Spark.
        driver_log_verbosity: "all" shows what the ranks print in the driver; "log_callback_only", Databricks' default,
            shows nothing of it.

    Raises:
        ConfigError: If an argument cannot be used.

    Example:

    ```python
    loss = tfdist.spark.Runner(np=4).run(train, epochs=3)
    ```
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = _ALL) -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise ConfigError(f"{_CALLER}: np must be a whole number; received {np!r}.")
        if driver_log_verbosity not in (_ALL, _NOTHING):
            raise ConfigError(
                f"{_CALLER}: driver_log_verbosity must be {_ALL!r} or {_NOTHING!r}; received {driver_log_verbosity!r}."
            )
        self.num_processor = np
        self._shows = driver_log_verbosity == _ALL

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Calls `main(**kwargs)` on all ranks.

        Returns:
            What it returned on rank 0.

        Raises:
            Exception: As `tfdist.spark.run`, or `tfdist.run` for a negative `np`.
        """
        with open(os.devnull, "w") as nowhere:
            stream = None if self._shows else nowhere
            if self.num_processor < 0:
                setting = Setting(out=stream, err=stream)
                words = [f"-np={-self.num_processor}"]
                packed, name = parcel.pack_call(main, (), kwargs), parcel.name_of(main)
                program = function_job.program_of()
                results = function_job.call_on_ranks(packed, name, words, program, setting, _CALLER)
                return results[0]
            ranks = self.num_processor or check.slots(check.application(_CALLER))
            return job.run(main, kwargs=kwargs, num_proc=ranks, stdout=stream, stderr=stream)[0]
