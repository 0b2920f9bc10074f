"""Metrics over all ranks: exact, by summing states, if possible; otherwise a weighted mean. Not a callback."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import errors
from tfdist.ops.allreduce import reduce_figures

# A metric class may declare with this attribute that its state is additive: `tfdist_reduction = "sum"`.
DECLARATION = "tfdist_reduction"
_UNEQUAL = (
    "the ranks trained on %s samples in one epoch but have equal weight in each step, so a sample in a smaller batch "
    'weighs more. To weight the ranks by samples, fit tfdist.shard(dataset, remainder="join") or a tf.data pipeline '
    "built on it."
)


@dataclass(frozen=True)
class _Report:
    """What one rank sends to the others.

    Attributes:
        logs: What its last step returned; empty if it had no batch.
        is_metrics: Whether the logs are the results of the model's metrics.
        own: Results of the metrics that are not additive.
        states: Shape and dtype of each additive state.
        digest: Of the values of these states.
        samples: Samples it has seen.
    """

    logs: dict[str, Any]
    is_metrics: bool
    own: dict[str, Any]
    states: list[tuple[tuple[int, ...], str]]
    digest: int
    samples: int


class _Own:
    """Stands in for a result that is not read from an additive state, so that its name in the logs is found."""

    def __init__(self, value: Any) -> None:
        self.value = value


def reduce_logs(
    model: keras.Model, logs: Any, samples: int, warn_if_unequal: bool = False, may_repeat: bool = False
) -> dict[str, Any]:
    """The logs of an epoch over all ranks, the same on every rank.

    Args:
        model: The model whose metrics were updated.
        logs: What the last step of this rank returned; empty if the rank had no batch.
        samples: Samples this rank has seen in this epoch.
        warn_if_unequal: Whether rank 0 warns, once per `fit`, if the ranks have seen different numbers of samples.
        may_repeat: Whether ranks that have counted the same, to the bit, have seen the same data, of which each sample
            counts once; as in a validation on the whole data.

    Returns:
        Dict of name to scalar. A metric with additive state is exact, whatever each rank has seen. Other metrics, and
        logs that do not come from metrics, are means weighted by samples.

    Raises:
        ConfigError: If ranks that have seen data return different logs.
    """
    mine = {name: np.asarray(value) for name, value in _flat(logs)} if isinstance(logs, dict) else {}
    metrics = _Metrics(model, has_data=bool(mine))
    reports: list[_Report] = tfdist.allgather_object(metrics.report(mine, samples), name="what each rank has seen")
    if warn_if_unequal:
        _warn_if_unequal(model, [report.samples for report in reports])
    first = _first_with_data(reports)
    leader = reports[first]
    if not leader.is_metrics:
        return {name: _weighted_mean([(r.logs.get(name), r.samples) for r in reports]) for name in leader.logs}
    repeats = may_repeat and _is_repeated(reports)
    results = metrics.results() if repeats else metrics.summed_results(leader.states)
    for name in leader.own:
        results[name] = _weighted_mean([(r.own.get(name), r.samples) for r in reports])
    if any(report.states != leader.states for report in reports):
        # A rank that has not built its metrics gets the results of one that has.
        plain = {name: np.asarray(value) for name, value in results.items()}
        return dict(tfdist.broadcast_object(plain, first, name="logs of all ranks"))
    return results


def average_others(logs: dict[str, Any], known: Collection[str]) -> None:
    """Replaces numbers that callbacks of the script have put into the logs by their means over the ranks.

    What is the same on all ranks stays as it is, to the bit; so does what some ranks do not have. A collective.

    Args:
        logs: Of an epoch, on this rank.
        known: The names of those numbers that are of all ranks already.
    """
    mine = {name: float(value) for name, value in logs.items() if name not in known and _is_number(value)}
    of_ranks = tfdist.allgather_object(mine, name="numbers that callbacks put into the logs")
    for name in mine:
        values = [each.get(name) for each in of_ranks]
        if None not in values and len(set(values)) > 1:
            logs[name] = float(np.mean(values))


def _is_number(value: Any) -> bool:
    """Whether it is a single one, of Python or with a dtype."""
    if hasattr(value, "shape"):
        return not tuple(value.shape) and np.asarray(value).dtype.kind in "fiu"
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_repeated(reports: Sequence[_Report]) -> bool:
    """Whether all ranks have counted the same, to the bit."""
    return len({(report.samples, report.digest) for report in reports}) == 1


def _warn_if_unequal(model: keras.Model, samples: Sequence[int]) -> None:
    is_first = not model.history.epoch  # of a fit
    if is_first and tfdist.rank() == 0 and len(set(samples)) > 1:
        logging.getLogger("tfdist").warning(_UNEQUAL, ", ".join(map(str, samples)))


def _flat(logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A `train_step` that returns `{m.name: m.result() for m in self.metrics}` has the compiled metrics in one dict."""
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def is_additive(metric: keras.metrics.Metric) -> bool:
    """Whether the sum of the states of all ranks is the state of one process on all data.

    True if `update_state` is Keras' own, whose metrics all count and sum, or if the class declares it.

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


def leaves(metrics: Iterable[keras.metrics.Metric]) -> list[keras.metrics.Metric]:
    """The metrics themselves, each once, without containers."""
    found: dict[int, keras.metrics.Metric] = {}
    for metric in metrics:
        parts = getattr(metric, "metrics", None)
        found |= {id(leaf): leaf for leaf in ([metric] if parts is None else leaves(parts))}
    return list(found.values())


def additive_states(model: keras.Model) -> list[Any]:
    """The variables of the model's metrics whose sum over the ranks is that of one process."""
    return [v for metric in leaves(model.metrics) if is_additive(metric) for v in metric.variables]


def summed_states(model: keras.Model) -> list[np.ndarray[Any, Any]]:
    """The sums of these variables over all ranks, which have taken the same steps. A collective."""
    mine = [tf.identity(variable.value) for variable in additive_states(model)]
    return [each.numpy() for each in reduce_figures(mine, tfdist.Sum, "metric states")] if mine else []


def add_states(model: keras.Model, sums: Sequence[np.ndarray[Any, Any]]) -> None:
    """Adds such sums to the variables of one rank, so that the sum over the ranks grows by them."""
    if tfdist.rank() == 0:
        for variable, value in zip(additive_states(model), sums, strict=True):
            variable.assign_add(value)


class _Metrics:
    """The metrics of this rank's model, split into those with additive state and the others."""

    def __init__(self, model: keras.Model, has_data: bool) -> None:
        # Keras builds metrics in the first step, so a rank without data may have none to read.
        readable = has_data or all(getattr(metric, "built", True) for metric in model.metrics)
        found = leaves(model.metrics) if readable else []
        parted = [(metric, is_additive(metric)) for metric in found]
        self._model = model
        self._any = bool(parted)
        self._others = [metric for metric, additive in parted if not additive]
        self._variables = [v for metric, additive in parted if additive for v in metric.variables]

    def report(self, logs: dict[str, Any], samples: int) -> _Report:
        """What the other ranks need."""
        results = self.results() if self._any else {}
        own = {name: np.asarray(value.value) for name, value in results.items() if isinstance(value, _Own)}
        digest = zlib.crc32(b"".join(np.asarray(variable).tobytes() for variable in self._variables))
        return _Report(logs, set(logs) == set(results), own, self._states(), digest, samples)

    def summed_results(self, states: list[tuple[tuple[int, ...], str]]) -> dict[str, Any]:
        """The results from the sums of all ranks' states; empty on a rank whose states differ from `states`."""
        complete = self._states() == states
        mine = [tf.identity(v.value) for v in self._variables] if complete else [tf.zeros(*state) for state in states]
        sums = reduce_figures(mine, tfdist.Sum, "metric states") if mine else []
        if not complete:
            return {}
        with _assigned(self._variables, mine, sums):
            return self.results()

    def _states(self) -> list[tuple[tuple[int, ...], str]]:
        return [(tuple(variable.shape), str(variable.dtype)) for variable in self._variables]

    def results(self) -> dict[str, Any]:
        """The results from the states of this rank, by their names in the logs; those that are not additive are
        marked.
        """
        with contextlib.ExitStack() as stack:
            for metric in self._others:
                marked = tf.nest.map_structure(_Own, metric.result())
                vars(metric)["result"] = lambda marked=marked: marked
                stack.callback(vars(metric).pop, "result")
            return dict(self._model.get_metrics_result())


def _first_with_data(reports: Sequence[_Report]) -> int:
    """The first rank that has logs; all other ranks with logs must agree with it."""
    seeing = [rank for rank, report in enumerate(reports) if report.logs]
    if not seeing:
        return 0
    first = reports[seeing[0]]
    for rank in seeing:
        other = reports[rank]
        if set(other.logs) != set(first.logs) or other.states != first.states:
            raise errors.ConfigError(
                f"the ranks have different logs: rank {seeing[0]} has {sorted(first.logs)} from {len(first.states)} "
                f"metric states, rank {rank} has {sorted(other.logs)} from {len(other.states)}. Compile the same "
                "metrics on every rank."
            )
    return seeing[0]


@contextlib.contextmanager
def _assigned(variables: Sequence[Any], before: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> Iterator[None]:
    try:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _weighted_mean(values: Sequence[tuple[Any, int]]) -> Any:
    """The mean of the values, weighted by samples. A rank without samples counts nothing, not even its NaN."""
    known = [(value.astype(np.float64), samples) for value, samples in values if value is not None]
    total = sum(samples for _, samples in known)
    if not total:
        return np.mean([value for value, _ in known], axis=0)
    return sum(value * (samples / total) for value, samples in known if samples)
