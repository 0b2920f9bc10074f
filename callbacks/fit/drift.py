"""Checks during `fit` that all ranks still have the same weights: after the first step and each epoch.

Not a callback: the callbacks that start a distributed `fit` share the instance in the model's hook, so each check runs
once. It never runs inside a step: the check after the first step runs at the start of the second, or at the end of the
epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import keras

import tfdist
from tfdist import errors
from tfdist.callbacks.fit import training_data
from tfdist.native import keras_version
from tfdist.training import equality, model_optimizer, optimizer
from tfdist.training.gradients import record_of
from tfdist.training.local_variable import key_of, without
from tfdist.world.process_sets import ProcessSet, global_process_set

_logger = logging.getLogger("tfdist")

MODES = ("error", "warn", "off")
_NAMED = 3
# Of the norm, for a variable that no reduction has seen, on equal hardware, which rounds alike: it may be a small rate.
_UNREDUCED_TOLERANCE = 1e-5


def checked(mode: Any) -> str:
    """Validates the `drift` argument of a callback.

    Raises:
        ConfigError: If it is not one of `MODES`.
    """
    if mode not in MODES:
        raise errors.ConfigError(f'drift must be "error", "warn" or "off"; received {mode!r}.')
    return str(mode)


class Drift:
    """The checks of one model.

    Args:
        model: A compiled model, built or not.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._fit: Any = None
        self._mode = MODES[0]
        self._keep: list[Any] = []
        self._in_epoch = True
        self._first_batch: int | None = None
        self._epoch: int | None = None
        self._stepped = self._rounded = self._warned = False

    def begin(self, mode: str, keep: Sequence[Any] = (), in_epoch: bool = True) -> None:
        """A `fit` begins. Each callback in the list calls this; the mildest of their modes applies.

        Args:
            mode: One of `MODES`.
            keep: Variables that may differ between ranks.
            in_epoch: Whether to check before the second step, which needs all ranks to have one.
        """
        if self._fit is not self._model.history:  # Keras makes one for each fit
            self._fit = self._model.history
            self._mode, self._keep, self._in_epoch = mode, [], not training_data.is_uneven(self._model)
            self.resume()
        self._mode = max(self._mode, mode, key=MODES.index)
        self._keep += keep
        self._in_epoch = self._in_epoch and in_epoch

    def has_begun(self) -> bool:
        """Whether a callback in the list of this `fit` has called `begin`."""
        return self._fit is not None and self._fit is self._model.history

    def resume(self) -> None:
        """An elastic `fit` continues, possibly with other ranks; no rank may rely on what another has seen."""
        self._first_batch = self._epoch = None
        self._stepped = self._rounded = self._warned = False

    def batch_begins(self, batch: int) -> None:
        """Called before each step that is not skipped; steps are numbered from 0 in each epoch."""
        if self._first_batch is None:
            self._first_batch = batch
        elif self._in_epoch and not self._stepped and batch >= self._first_batch + self._steps_of_update():
            self._look("after the first step of fit", "after the first step of fit")
            self._stepped = True

    def epoch_ends(self, epoch: int) -> None:
        """Called after the last step of an epoch (numbered from 0), once all ranks have met."""
        if epoch != self._epoch:
            self._look(f"after epoch {epoch + 1} of fit", "after an epoch of fit")
            self._stepped, self._epoch = True, epoch

    def _steps_of_update(self) -> int:
        """Steps until the weights have changed."""
        found = [keras_version.inner_optimizer(each) for each in model_optimizer.optimizers_of(self._model)]
        steps = [each.gradient_accumulation_steps or 1 for each in found]
        return max(steps, default=1)

    def _look(self, when: str, label: str) -> None:
        """Compares all groups. The collectives' names have no numbers: TensorFlow keeps something for each name."""
        if self._mode == "off" or tfdist.size() == 1:
            return
        texts = [text for text in (self._compare(when, label, *group) for group in self._groups()) if text]
        if len(tfdist.get_process_set_ids_and_ranks()) > 1:  # ranks outside of a set must not train on
            told = tfdist.allgather_object(texts, name=f"{label}: process sets")
            texts = list(dict.fromkeys(text for of_rank in told for text in of_rank))
        if texts and self._mode == "error":
            raise errors.MismatchError("\n".join(texts))
        if texts and not self._warned and tfdist.rank() == 0:
            _logger.warning("%s", "\n".join(texts))
        self._warned = self._warned or bool(texts)

    def _compare(self, when: str, label: str, process_set: ProcessSet, variables: Sequence[Any]) -> str:
        """What has drifted apart in a process set, the same on its ranks; empty if nothing has."""
        parts = [equality.part_of(variable) for variable in variables]
        differences = equality.compare(parts, label, process_set)
        if not differences:
            return ""
        ranks_of = equality.ranks_by_hardware(label, process_set)
        missed = [each.place for each in differences if _is_missed(each, variables[each.place])]
        # What the first rank finds: the others may have traced other steps.
        missed = tfdist.broadcast_object(missed, process_set.ranks[0], f"{label}: not reduced", process_set)
        drifted = [each for each in differences if each.drifted or (len(ranks_of) == 1 and each.place in missed)]
        if drifted:
            return equality.describe(drifted, parts, when, process_set, self._advice(drifted, variables))
        if not self._rounded and tfdist.rank() == process_set.ranks[0]:
            _logger.warning("%s", equality.describe_rounding(differences, when, ranks_of))
        self._rounded = True
        return ""

    def _groups(self) -> list[tuple[ProcessSet, list[Any]]]:
        """What the optimizers update, and other trainable weights, that must be equal within each process set of this
        rank.
        """
        local = (*self._keep, *model_optimizer.local_variables(self._model))
        groups: dict[int, tuple[ProcessSet, list[Any]]] = {0: (global_process_set, [])}
        updated = [*self._model.trainable_weights, *model_optimizer.updated_beside(self._model)]
        for variable in without(updated, local):
            record = record_of(variable)
            process_set = global_process_set if record is None else record.process_set
            if process_set is None or process_set.process_set_id is None:
                continue
            groups.setdefault(process_set.process_set_id, (process_set, []))[1].append(variable)
        return [groups[number] for number in sorted(groups) if groups[number][0].included()]

    def _advice(self, drifted: Sequence[equality.Difference], variables: Sequence[Any]) -> str:
        """What may have updated the variables, and the remedy; variables with the same answer are grouped."""
        names: dict[str, list[str]] = {}
        for difference in drifted:
            names.setdefault(self._suspect(variables[difference.place]), []).append(difference.name)
        lines = []
        for suspect, members in names.items():
            more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
            lines.append(f"{', '.join(members[:_NAMED])}{more}: {suspect}")
        lines.append('If the ranks should train independently, pass drift="off" to the callback. See docs/drift.md.')
        return "\n".join(lines)

    def _suspect(self, variable: Any) -> str:
        named = model_optimizer.named_optimizers(self._model)
        path, owner = next(((path, each) for path, each in named.items() if _updates(each, variable)), ("", None))
        reduced = record_of(variable) is not None
        if owner is not None and not optimizer.is_distributed(owner):
            unless = ", unless a tape has reduced its gradient" if reduced else ""
            return (
                f"it is updated by {path} ({owner.name!r}), which is not distributed{unless}. Add "
                "tfdist.callbacks.DataParallel() to the callbacks, or wrap the optimizer with "
                "tfdist.DistributedOptimizer(...)."
            )
        if reduced:
            by = f"by {path} ({owner.name!r}), which is distributed" if owner is not None else "by tfdist"
            return (
                f"its gradient is reduced {by}, so something else also changes it, differently on each rank: code in "
                "train_step, a constraint, or a callback that assigns weights."
            )
        return (
            "no optimizer of the model holds it, and its gradient was never reduced: it is updated by code in "
            "train_step or a callback, or by an optimizer that tfdist did not find. Make that optimizer an attribute "
            "of the model, so that its rate is scaled and backups include it, or wrap it with "
            "tfdist.DistributedOptimizer(...)."
        )


def _is_missed(difference: equality.Difference, variable: Any) -> bool:
    """Whether it comes from an update, however small, of a variable whose gradient is never reduced."""
    return record_of(variable) is None and difference.size > _UNREDUCED_TOLERANCE


def _updates(found: Any, variable: Any) -> bool:
    return key_of(variable) in {key_of(other) for other in keras_version.variables_in(found)}
