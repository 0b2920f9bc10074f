"""Tells that the ranks train on their own: nobody has added DataParallel, or made PyTorch's optimizer distributed."""

from __future__ import annotations

import atexit
import contextlib
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


_DATA = ("x", "y", "sample_weight")


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
    seen: list[Callable[[], Any]] = []

    def trained(model: Any, _batch: int) -> None:
        fit = getattr(model, "history", None)  # Keras makes one for each fit; a loop of the script's own has none
        if not seen or seen[0]() is not fit:
            seen[:] = [(lambda: None) if fit is None else weakref.ref(fit)]
            tell()
            _tell_of_later_fit(model, is_part)

    def tested(model: Any, callbacks: Sequence[Any]) -> None:
        _tell_of_evaluation(model, callbacks, is_part)

    def install() -> None:
        fit_hook.after_steps(lambda: trained)
        fit_hook.before_tests(lambda: tested)

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
    rank, size = session.place or (0, 1)
    if text and not session.told_alone and rank == 0 and size > 1:
        session.told_alone = True
        _logger.warning("%s", text)


def _tell_of_later_fit(model: Any, is_part: Callable[[Any], bool]) -> None:
    """A `fit` by an optimizer that `compile` made after one that reduces; a step of the script's own may reduce."""
    from tfdist.native import keras_version

    arguments = keras_version.arguments_of_fit(model)
    if not is_part([arguments.get(name) for name in _DATA]):
        return
    is_distributed = hasattr(keras_version.inner_optimizer(model.optimizer), "_tfdist")
    if not (is_distributed or keras_version.has_own_train_step(model)):
        _tell(_LATER_FIT)


def _tell_of_evaluation(model: Any, callbacks: Sequence[Any], is_part: Callable[[Any], bool]) -> None:
    from tfdist.native import keras_version

    ours = any(kind.__module__.startswith("tfdist.") for each in callbacks for kind in type(each).__mro__)
    rank, size = session.place or (0, 1)
    if ours or rank or size == 1 or session.told_of_evaluation:
        return
    arguments = keras_version.arguments_of_evaluate(model)
    if is_part([arguments.get(name) for name in _DATA]):
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
