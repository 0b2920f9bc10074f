"""Metrics over all ranks: exact by summing states where that is possible, else a weighted mean. Not a callback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import errors

# A metric class may declare with this attribute that its state is additive: `tfdist_reduction = "sum"`.
DECLARATION = "tfdist_reduction"


@dataclass(frozen=True)
class _Report:
    """What one rank tells the others.

    Attributes:
        logs: What its last step returned; empty where it had no batch.
        is_metrics: Whether the logs are the results of the model's metrics.
        own: Results of the metrics that are not additive.
        states: Shape and dtype of each additive state.
        samples: Samples it has seen.
    """

    logs: dict[str, Any]
    is_metrics: bool
    own: dict[str, Any]
    states: list[tuple[tuple[int, ...], str]]
    samples: int


class _Own:
    """Stands in for a result that is not read from an additive state, so that its name in the logs is found."""

    def __init__(self, value: Any) -> None:
        self.value = value


def reduce_logs(model: keras.Model, logs: Any, samples: int) -> dict[str, Any]:
    """The logs of an epoch over all ranks, the same on every rank.

    Args:
        model: The model whose metrics were updated.
        logs: What the last step of this rank returned; empty where the rank had no batch.
        samples: Samples this rank has seen in this epoch.

    Returns:
        Dict of name to scalar. A metric whose state is additive is exact, whatever the ranks have seen. Other metrics,
        and logs that do not come from metrics, are means weighted by the samples.

    Raises:
        ConfigError: If ranks that have seen data return different logs.
    """
    mine = {name: np.asarray(value) for name, value in logs.items()} if isinstance(logs, dict) else {}
    # Keras builds metrics in the first step, so a rank without data may have none to read.
    metrics = list({id(metric): metric for metric in leaves(model.metrics)}.values()) if mine or _built(model) else []
    additive = [is_additive(metric) for metric in metrics]
    others = [metric for metric, known in zip(metrics, additive, strict=True) if not known]
    variables = [v for metric, known in zip(metrics, additive, strict=True) if known for v in metric.variables]
    results = _results(model, others) if metrics else {}
    own = {name: np.asarray(value.value) for name, value in results.items() if isinstance(value, _Own)}
    states = [(tuple(variable.shape), str(variable.dtype)) for variable in variables]
    report = _Report(mine, set(mine) == set(results), own, states, samples)
    reports: list[_Report] = tfdist.allgather_object(report, name="what each rank has seen")
    leader = _leader(reports)
    names = reports[leader].logs
    if not reports[leader].is_metrics:
        return {name: _weighted_mean([(r.logs.get(name), r.samples) for r in reports]) for name in names}
    complete = states == reports[leader].states
    before = [tf.identity(v.value) for v in variables] if complete else _zeros(reports[leader].states)
    sums = tfdist.grouped_allreduce(before, op=tfdist.Sum, name="metric states") if before else []
    if complete:
        with _assigned(variables, before, sums):
            results = _results(model, others)
    for name in reports[leader].own:
        results[name] = _weighted_mean([(r.own.get(name), r.samples) for r in reports])
    if any(r.states != reports[leader].states for r in reports):
        # A rank that has not built its metrics is told.
        plain = {name: np.asarray(value) for name, value in results.items()}
        results = tfdist.broadcast_object(plain, leader, name="logs of all ranks")
    return results


def is_additive(metric: keras.metrics.Metric) -> bool:
    """Whether the sum of the states of all ranks is the state of one process on all data.

    True where `update_state` is Keras' own, whose metrics all count and sum, and where the class says so.

    Raises:
        ConfigError: If the class declares anything but "sum".
    """
    declared = getattr(metric, DECLARATION, None)
    if declared is not None:
        if declared != "sum":
            raise errors.ConfigError(f'{type(metric).__name__}.{DECLARATION} must be "sum"; received {declared!r}.')
        return True
    owner = next(parent for parent in type(metric).__mro__ if "update_state" in vars(parent))
    return owner.__module__.partition(".")[0] == "keras"


def leaves(metrics: Iterable[keras.metrics.Metric]) -> Iterator[keras.metrics.Metric]:
    """The metrics themselves, without what only groups them."""
    for metric in metrics:
        parts = getattr(metric, "metrics", None)
        if parts is not None:
            yield from leaves(parts)
        else:
            yield metric


def _built(model: keras.Model) -> bool:
    return all(getattr(metric, "built", True) for metric in model.metrics)


def _leader(reports: Sequence[_Report]) -> int:
    """The first rank that has logs; every rank that has must agree with it."""
    seeing = [rank for rank, report in enumerate(reports) if report.logs]
    if not seeing:
        return 0
    first = reports[seeing[0]]
    for rank in seeing:
        other = reports[rank]
        if set(other.logs) != set(first.logs) or other.states != first.states:
            raise errors.ConfigError(
                f"the ranks have different logs: rank {seeing[0]} has {sorted(first.logs)} from {len(first.states)} "
                f"metric states, rank {rank} has {sorted(other.logs)} from {len(other.states)}. Compile the same metrics "
                "on every rank."
            )
    return seeing[0]


def _results(model: keras.Model, others: Sequence[keras.metrics.Metric]) -> dict[str, Any]:
    """The results under the names they have in the logs; those of `others` are marked."""
    with contextlib.ExitStack() as stack:
        for metric in others:
            marked = tf.nest.map_structure(_Own, metric.result())
            vars(metric)["result"] = lambda marked=marked: marked
            stack.callback(vars(metric).pop, "result")
        return dict(model.get_metrics_result())


@contextlib.contextmanager
def _assigned(variables: Sequence[Any], before: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> Iterator[None]:
    try:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _zeros(states: Sequence[tuple[tuple[int, ...], str]]) -> list[tf.Tensor]:
    return [tf.zeros(shape, dtype) for shape, dtype in states]


def _weighted_mean(values: Sequence[tuple[Any, int]]) -> Any:
    """The mean of the values, weighted by samples. A rank without samples counts nothing, not even its NaN."""
    known = [(value.astype(np.float64), samples) for value, samples in values if value is not None]
    total = sum(samples for _, samples in known)
    if not total:
        return np.mean([value for value, _ in known], axis=0)
    return sum(value * (samples / total) for value, samples in known if samples)
