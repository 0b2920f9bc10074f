"""tf.distribute inside a rank: a strategy with one replica is equivalent to none, one with several is rejected.

A rank is one replica of the model. A second replica in a strategy would get no broadcast, and its collectives would mix
with those of the first.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.world import runtime


def problem_of(strategy: tf.distribute.Strategy) -> str | None:
    """What is wrong with a strategy under which a model of several ranks is made; None if nothing is."""
    replicas = strategy.num_replicas_in_sync
    if replicas == 1 or runtime.size() == 1:
        return None
    return (
        f"the model or variable is made under {type(strategy).__name__} with {replicas} replicas; expected one "
        f"replica on each of the {runtime.size()} ranks. Remove the strategy, and start one rank per device: "
        "tfdistrun -np NUMBER python SCRIPT."
    )


def is_wrapped(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy, with any number of replicas, wraps values and datasets in its own classes."""
    return tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy()


def need_one() -> None:
    """Rejects a collective that several replicas of this process would each run.

    Raises:
        ConfigError: Inside `strategy.run` with more than one replica, if there are several ranks.
    """
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        _raise(problem_of(tf.distribute.get_strategy()))


def own(variable: Any) -> tf.Variable:
    """The single `tf.Variable` of a `tf.Variable` or `keras.Variable`, even if a strategy has wrapped it.

    Raises:
        ConfigError: If it has several, and there are several ranks.
    """
    resource = variable if isinstance(variable, tf.Variable) else variable.value
    if not isinstance(resource, tf.distribute.DistributedValues):
        return resource
    _raise(problem_of(resource.distribute_strategy))
    return resource.values[0]


def _raise(problem: str | None) -> None:
    if problem:
        raise errors.ConfigError(problem)
