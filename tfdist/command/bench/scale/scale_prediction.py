"""The step of many GPUs from the step of one: which bucket travels when, and who waits. Pure; it measures nothing.

A simulation of one step: the ranks compute alike, but each a little faster or slower than its mean, and the slowest of
them decides when a bucket can start. One stream carries the buckets, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.command.bench.allreduce import case
from tfdist.command.bench.measure import statistic
from tfdist.command.bench.scale import scale_collective
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_step import Step
from tfdist.config import COMPRESSIONS

Plan = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Manner:
    """How the gradients travel.

    Attributes:
        compression: One of `config.COMPRESSIONS`.
        schedule: One of `scale_collective.SCHEDULES`.
        overlap: Whether a bucket travels while earlier layers still compute; if not, all do after the last gradient.
    """

    compression: str = "none"
    schedule: str = "hierarchical"
    overlap: bool = True


@dataclass(frozen=True)
class Prediction:
    """One step on so many GPUs.

    Attributes:
        gpus: Number of ranks.
        hosts: Hosts that they fill.
        step_s: Seconds of the step.
        compute_s: Seconds of it that the slowest rank computes.
        communication_s: Seconds that the stream is busy, hidden or not.
        exposed_s: Seconds of the step in which nothing is computed.
        images_per_second: Of all ranks.
        efficiency: `images_per_second` by `gpus` times that of one GPU alone.
    """

    gpus: int
    hosts: int
    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    images_per_second: float
    efficiency: float


def wire_sizes(step: Step, compression: str) -> list[int]:
    """Bytes of each gradient as it travels; float32 and float64 can be compressed."""
    wire = COMPRESSIONS[compression]
    if not wire or step.dtype not in case.COMPRESSIBLE:
        return step.gradients
    return [size * case.ELEMENT_BYTES[wire] // case.ELEMENT_BYTES[step.dtype] for size in step.gradients]


def stretch(gpus: int, deviation: float) -> float:
    """The slowest of so many ranks, by the mean one, whose times are normal with this relative deviation."""
    return 1 + deviation * statistic.expected_maximum(gpus)


def predict(step: Step, plan: Plan, cluster: Cluster, gpus: int, manner: Manner) -> Prediction:
    """Simulates a step.

    Args:
        step: The step of one GPU alone, which nothing is exchanged in.
        plan: The positions, in `step.gradients`, of each bucket's gradients.
        cluster: Where it runs.
        gpus: Number of ranks.
        manner: How the gradients travel.

    Raises:
        ConfigError: If the GPUs do not fill their hosts.
    """
    place = cluster.place(gpus)
    slowest = stretch(gpus, step.deviation)
    ready = step.ready(slowest)
    computed = (step.seconds - step.update_s) * slowest
    sizes, wire = step.gradients, wire_sizes(step, manner.compression)
    end, busy = 0.0, 0.0
    for bucket in sorted(filter(None, plan), key=max):  # a bucket can start when its last gradient is there
        size, wire_size = (sum(all_sizes[index] for index in bucket) for all_sizes in (sizes, wire))
        seconds = scale_collective.allreduce_s(cluster, place, wire_size, manner.schedule)
        if seconds > 0:
            seconds += scale_collective.cast_s(cluster, size, wire_size)
        end = max(end, ready[max(bucket)] if manner.overlap else computed) + seconds
        busy += seconds
    exposed = max(0.0, end - computed)
    compute_s = step.seconds * slowest
    step_s = compute_s + exposed
    return Prediction(
        gpus=gpus,
        hosts=place.hosts,
        step_s=step_s,
        compute_s=compute_s,
        communication_s=busy,
        exposed_s=exposed,
        images_per_second=gpus * step.batch_size / step_s,
        efficiency=step.seconds / step_s,
    )
