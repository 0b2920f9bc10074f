"""What the callbacks of an elastic `fit` decide by: a part of each commit, so that all ranks decide alike.

A rank that joins, one that missed the end of a step, and one of a restarted job would otherwise count from the start:
`EarlyStopping` would end the training on some ranks only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tfdist import errors
from tfdist.native import keras_version


class Kept:
    """The values of attributes, by callback. Nobody changes them in place, so copies of the state share them."""

    def __init__(self, values: dict[str, dict[str, Any]]) -> None:
        self.values = values

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        return self


def capture(callbacks: Iterable[Any]) -> Kept:
    """What these callbacks decide by now."""
    return Kept({name: {each: getattr(one, each) for each in given} for name, one, given in _named(callbacks)})


def restore(callbacks: Iterable[Any], kept: Kept) -> None:
    """Gives the callbacks what those of another rank, or of an earlier process, had. Others stay as they are."""
    for name, callback, _ in _named(callbacks):
        for attribute, value in kept.values.get(name, {}).items():
            setattr(callback, attribute, value)


def _named(callbacks: Iterable[Any]) -> Iterator[tuple[str, Any, list[str]]]:
    """Each callback that decides by attributes, and these. The lists of the ranks may differ: some have callbacks of
    rank 0 only.
    """
    seen: Counter[str] = Counter()
    for callback in callbacks:
        kind = type(callback).__qualname__
        seen[kind] += 1
        of_keras = [name for name in keras_version.decides_by(callback) if hasattr(callback, name)]
        own = list(getattr(callback, "elastic_attributes", ()))
        if missing := [name for name in own if not hasattr(callback, name)]:
            raise errors.ConfigError(
                f"{kind}.elastic_attributes names {', '.join(missing)}, which the callback does not have. Correct the "
                "name, or set the attribute when the callback is made."
            )
        if of_keras or own:
            yield f"{kind} {seen[kind]}", callback, of_keras + own
