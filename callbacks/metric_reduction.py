"""Metrics over all ranks: exact by summing states where that is possible, else a weighted mean. Not a callback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist import errors

# A metric class may declare with this attribute that its state is additive: `tfdist_reduction = "sum"`.
DECLARATION = "tfdist_reduction"


def reduce_logs(model: keras.Model, logs: Any, samples: int) -> dict[str, Any]:
    """The logs of an epoch over all ranks, the same on every rank.

    Args:
        model: The model whose metrics were updated.
        logs: What the last step of this rank returned; empty where the rank had no batch.
        samples: Samples this rank has seen in this epoch.

    Returns:
        Dict of name to scalar. A metric whose state is additive is exact, whatever the ranks have seen. Other metrics,
        and logs that do not come from metrics, are means weighted by the samples.
    """
    mine = dict(logs) if isinstance(logs, dict) else {}
    by_rank = tfdist.allgather_object((sorted(mine), samples), name="names of the logs")
    names = next((names for names, _ in by_rank if names), [])
    total = sum(samples for _, samples in by_rank)
    metric_logs = _reduced_results(model, samples / total if total else 1.0 / tfdist.size())
    if set(names) == set(metric_logs):
        return metric_logs
    return _weighted_mean({name: mine.get(name, 0.0) for name in names}, samples / total if total else 0.0)


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


def leaves(metrics: list[keras.metrics.Metric]) -> Iterator[keras.metrics.Metric]:
    """The metrics themselves, without what only groups them."""
    for metric in metrics:
        parts = getattr(metric, "metrics", None)
        if parts is not None:
            yield from leaves(parts)
        else:
            yield metric


def _reduced_results(model: keras.Model, weight: float) -> dict[str, Any]:
    """Puts the sums of all ranks in place of the local states, reads the results, and puts the states back."""
    metrics = list({id(metric): metric for metric in leaves(model.metrics)}.values())
    additive = [metric for metric in metrics if is_additive(metric)]
    variables = [variable for metric in additive for variable in metric.variables]
    before = [tf.identity(variable.value) for variable in variables]
    sums = tfdist.grouped_allreduce(before, op=tfdist.Sum, name="metric states")
    try:
        for variable, value in zip(variables, sums, strict=True):
            variable.assign(value)
        results: dict[str, Any] = dict(model.get_metrics_result())
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
    others = {metric.name for metric in metrics} - {metric.name for metric in additive}
    return {**results, **_weighted_mean({name: results[name] for name in others & set(results)}, weight)}


def _weighted_mean(values: dict[str, Any], weight: float) -> dict[str, Any]:
    """Sum over ranks of weight times value. A rank without samples counts nothing, not even its NaN."""
    names = sorted(values)
    if not names:
        return {}
    terms = [tf.cast(values[name], tf.float64) * weight if weight else tf.zeros((), tf.float64) for name in names]
    sums = tfdist.grouped_allreduce(terms, op=tfdist.Sum, name="logs", tensor_names=names)
    return {name: float(total) for name, total in zip(names, sums, strict=True)}
