"""How a trainer reads from a data service: frozen and validated, without TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfdist.errors import ConfigError

POLICIES = ("off", "dynamic", "file", "data", "file_or_data", "hint")


@dataclass(frozen=True)
class Reading:
    """The arguments of `distribute` that specify how to read; see there.

    Raises:
        ConfigError: If one is invalid.
    """

    sharding: str = "dynamic"
    job_name: str | None = None
    max_outstanding_requests: int | None = None
    cross_trainer_cache: str | None = None
    consumer_index: int | None = None
    num_consumers: int | None = None
    wait_seconds: float = 60
    expected: int | None = None

    def __post_init__(self) -> None:
        if self.sharding not in POLICIES:
            raise ConfigError(f"sharding must be one of {', '.join(POLICIES)}; received {self.sharding!r}.")
        if self.job_name == "":
            raise ConfigError("job_name is empty; expected a name, or None for a pass that this trainer reads alone.")
        if self.max_outstanding_requests is not None and self.max_outstanding_requests < 1:
            raise ConfigError(
                f"max_outstanding_requests must be 1 or more, or None; received {self.max_outstanding_requests}."
            )
        if not math.isfinite(self.wait_seconds) or self.wait_seconds < 0.001:
            raise ConfigError(
                f"wait_seconds must be 0.001 or more; received {self.wait_seconds}. Every wait needs a limit."
            )
        if self.expected is not None and self.expected < 0:
            raise ConfigError(f"expected must be a number of elements, or None; received {self.expected}.")
        self._check_shared_reads()

    def _check_shared_reads(self) -> None:
        if self.cross_trainer_cache is not None and not (self.cross_trainer_cache and self.job_name):
            raise ConfigError(
                "cross_trainer_cache needs a name for this trainer and the job_name that the trainers share; received "
                f"cross_trainer_cache={self.cross_trainer_cache!r}, job_name={self.job_name!r}."
            )
        if self.consumer_index is None and self.num_consumers is None:
            return
        index, number = self.consumer_index, self.num_consumers
        if index is None or number is None or not 0 <= index < number or not self.job_name:
            raise ConfigError(
                "coordinated reads need consumer_index from 0 to num_consumers - 1 and the job_name that the trainers "
                f"share; received consumer_index={index}, num_consumers={number}, job_name={self.job_name!r}."
            )

    @property
    def shared(self) -> bool:
        """Whether other trainers may read parts of the same pass."""
        return self.job_name is not None

    @property
    def fixed(self) -> bool:
        """Whether each worker has a fixed shard, for which the dispatcher must know the workers in advance."""
        return self.sharding not in ("off", "dynamic")

    @property
    def repeats(self) -> bool:
        """Whether an element may legitimately come more than once: from every worker."""
        return self.sharding == "off"

    @property
    def parts_the_source(self) -> bool:
        """Whether a worker runs all steps on part of the data, rather than keeping every n-th result."""
        return self.sharding in ("dynamic", "file", "file_or_data", "hint")

    def expected_elements(self, cardinality: int | None) -> int | None:
        """Elements of one pass of all trainers together, if known from the arguments or the dataset."""
        if self.expected is not None:
            return self.expected
        # Under "off" it depends on the number of workers; a hint makes a dataset's cardinality meaningless.
        tells = self.sharding not in ("off", "hint") and not self.cross_trainer_cache and self.num_consumers is None
        return cardinality if tells else None
