"""How long this process has waited for data, to see whether training is input-bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.data_service.trainer import watch
from tfdist.data_service.trainer.wait_meter import Count, Sample
from tfdist.native import library


@dataclass(frozen=True)
class Waited:
    """What this process has read, and how long it has waited for it.

    Attributes:
        seconds: Time that readers waited.
        elements: Elements read.
        longest_seconds: The longest wait for one element since the process began.
    """

    seconds: float
    elements: int
    longest_seconds: float

    def since(self, before: Waited) -> Waited:
        """The difference to an earlier reading; `longest_seconds` stays that of the process."""
        return Waited(self.seconds - before.seconds, self.elements - before.elements, self.longest_seconds)

    def share(self, wall_seconds: float) -> float:
        """The share of a time span spent waiting: 0 is compute-bound, 1 is input-bound.

        Args:
            wall_seconds: The time span of these waits. Concurrent readers count as one at most.
        """
        return min(1.0, self.seconds / wall_seconds) if wall_seconds > 0 else 0.0


def measure_wait(dataset: Any) -> Any:
    """Measures the wait for a dataset that goes directly into training.

    You need it if there are steps between `distribute` and `fit`, such as `prefetch` or a `map` in the trainer: put it
    last. `distribute` measures only its own output, and a `prefetch` after it waits while the model computes.

    Args:
        dataset: A `tf.data.Dataset`, from a data service or not.

    Returns:
        A `tf.data.Dataset` of the same elements. If a process has one, `wait_for_data` counts only such datasets.

    Example:

    ```python
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050").prefetch(2)
    model.fit(tfdist.data_service.measure_wait(dataset), callbacks=[tfdist.callbacks.DataWait()])
    ```
    """
    options = tf.data.Options()
    # Else TensorFlow adds a `prefetch` behind, and its thread waits in place of the trainer.
    options.experimental_optimization.inject_prefetch = False
    services = {watched.service for watched in watch.watches_of(dataset) if watched.service}
    measured = watch.Watch(watch.new_name("measured"), service="", made_of=tuple(sorted(services)))
    return watch.watch(dataset, measured).with_options(options)


def wait_for_data() -> Waited:
    """Returns how long this process has waited for data so far.

    Returns:
        A `Waited` of the datasets that went through `measure_wait`; if none was read, of those from `distribute` and
        `from_id`.

    Example:

    ```python
    before = wait_for_data()
    model.fit(dataset)
    print(wait_for_data().since(before))
    ```
    """
    own = [library.read_watch(watched.name) for watched in watch.watches() if not watched.service]
    if not any(reading.elements for reading in own):
        own = [library.read_watch(watched.name) for watched in watch.watches()]
    return Waited(
        seconds=sum(reading.waited_ns for reading in own) / 1e9,
        elements=sum(reading.elements for reading in own),
        longest_seconds=max((reading.longest_wait_ns for reading in own), default=0) / 1e9,
    )


def sample(service: str, now: float) -> Sample:
    """What this process has read from one service ("HOST:PORT"), and waited for it, up to this time of a monotonic
    clock.
    """

    def counts(watches: list[watch.Watch]) -> dict[str, Count]:
        read = {watched.name: library.read_watch(watched.name) for watched in watches}
        return {name: Count(reading.elements, reading.waited_ns / 1e9) for name, reading in read.items()}

    watches = watch.watches()
    return Sample(
        now,
        at_input=counts([watched for watched in watches if service in watched.made_of]),
        at_service=counts([watched for watched in watches if service == watched.service]),
    )
