"""Tells that the ranks train on their own: nobody has added DataParallel, or made PyTorch's optimizer distributed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system import after_import
from tfdist.system.rank import job_place
from tfdist.world import fit_hook
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
_WITH_KERAS = (
    "the data was sharded, but no gradient was ever reduced: each rank trained on its own, on its shard only. Add the "
    "callback: model.fit(..., callbacks=[tfdist.callbacks.DataParallel()])"
)
_WITH_PYTORCH = (
    "parameters were given to all ranks, but no gradient was ever reduced: if this job has trained, each rank did so "
    "on its own. Make the optimizer distributed: optimizer = hvd.DistributedOptimizer(optimizer)"
)
_LATER_FIT = (
    "the data of this fit was sharded, but nothing reduces the gradients of the model's optimizer: each rank trains on "
    "its own, on its shard only. Add the callback to each fit: model.fit(..., "
    "callbacks=[tfdist.callbacks.DataParallel()])"
)
_EVALUATION = (
    "model.evaluate covers the samples of each rank by itself, since its data was sharded. For metrics over all ranks "
    'add the callback, and leave out no sample: model.evaluate(tfdist.shard(dataset, remainder="join"), '
    "callbacks=[tfdist.callbacks.DataParallel()])"
)
_NEVER_ALIKE = (
    "gradients were averaged over the ranks, but nothing has made sure that the weights are the same: if the ranks "
    "began with different ones, each has trained a model of its own. Call tfdist.broadcast_variables(model.weights, "
    "root_rank=0) before the first step; or tfdist.check_equal(model), if each rank makes the same."
)
_WITHOUT_EXCHANGE = (
    "model.fit has trained a model of its own on each of the {size} ranks: they have exchanged nothing. Give each rank "
    "its part of the data, and add the callback: dataset = tfdist.shard(dataset); model.fit(dataset, "
    "callbacks=[tfdist.callbacks.DataParallel()])"
)


def watch_fit() -> None:
    """Called when tfdist is imported: a `fit` of a process without collectives is told when it exits, on rank 0."""
    _at_first_step(lambda: atexit.register(_tell_of_fit))


def watch(is_part: Callable[[Any], bool]) -> None:
    """Called when data is sharded: rank 0 tells at once of a `fit` that reduces no gradient, and of an `evaluate` that
    covers the part of this rank only.

    Args:
        is_part: Whether data that `fit` or `evaluate` takes was sharded.
    """
    if session.data_sharded:
        return
    session.data_sharded = True
    steps = _FirstSteps(is_part)

    def install() -> None:
        fit_hook.before_steps(lambda: steps.begins)
        fit_hook.after_steps(lambda: steps.ends)
        fit_hook.before_tests(lambda: functools.partial(_tell_of_evaluation, is_part))

    after_import.after_import("keras", install)


def tell() -> None:
    """The warning, if there is a reason; once per process, on rank 0."""
    if session.optimizer_reduced:
        text = "" if session.weights_alike else _NEVER_ALIKE
    elif session.gradients_reduced or session.fit_without_step:
        text = ""
    else:
        text = _WITH_KERAS if session.data_sharded else _WITH_PYTORCH if session.parameters_sent else ""
    _tell(text)


def _tell(text: str) -> None:
    if text and not session.told_alone and _is_first_of_many():
        session.told_alone = True
        _logger.warning("%s", text)


def _is_first_of_many() -> bool:
    rank, size = session.place or (0, 1)
    return rank == 0 and size > 1


class _FirstSteps:
    """Looks at the first step of each `fit`.

    Args:
        is_part: As for `watch`.
    """

    def __init__(self, is_part: Callable[[Any], bool]) -> None:
        self._is_part = is_part
        self._fit: Callable[[], Any] | None = None
        self._before: int | None = None
        self._functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_seen_all = not session.gradients_reduced

    def begins(self, model: Any) -> None:
        """Before each step."""
        fit = getattr(model, "history", None)  # Keras makes one for each fit; a loop of the script's own has none
        if self._fit is not None and self._fit() is fit:
            return
        self._fit = (lambda: None) if fit is None else weakref.ref(fit)
        self._before = session.reductions

    def ends(self, model: Any, _batch: int) -> None:
        """After each step. A function that `compile` has made anew reduces in its first step, or never."""
        before, self._before = self._before, None
        if before is None:
            return
        tell()
        function = getattr(model, "train_function", None)
        is_new = function is not None and function not in self._functions
        if is_new:
            self._functions.add(function)
        if is_new and self._has_seen_all and before == session.reductions and _has_part(model, "fit", self._is_part):
            _tell(_LATER_FIT)


def _has_part(model: Any, method: str, is_part: Callable[[Any], bool]) -> bool:
    """Whether the running `fit`, or the `evaluate` that is no part of one, has sharded data."""
    from tfdist.native import keras_version

    find = {"fit": keras_version.arguments_of_fit, "evaluate": keras_version.arguments_of_evaluate}
    arguments = find[method](model)
    return is_part([arguments.get(name) for name in ("x", "y", "sample_weight")])


def _tell_of_evaluation(is_part: Callable[[Any], bool], model: Any, callbacks: Sequence[Any]) -> None:
    ours = any(kind.__module__.startswith("tfdist.") for each in callbacks for kind in type(each).__mro__)
    if ours or session.told_of_evaluation or not _is_first_of_many():
        return
    if _has_part(model, "evaluate", is_part):
        session.told_of_evaluation = True
        _logger.warning("%s", _EVALUATION)


def _tell_of_fit() -> None:
    place = None
    with contextlib.suppress(ConfigError):  # a TF_CONFIG that is not for tfdist
        place = job_place.of_job()
    if place is not None and place[0] == 0 and place[1] > 1 and not (session.collectives or session.told_alone):
        _logger.warning("%s", _WITHOUT_EXCHANGE.format(size=place[1]))


def _at_first_step(action: Callable[[], object]) -> None:
    """Calls it, once, when a `fit` has taken its first step."""
    left = [action]

    def act(_model: Any, _batch: int) -> None:
        if left:
            left.pop()()

    after_import.after_import("keras", lambda: fit_hook.after_steps(lambda: act))
