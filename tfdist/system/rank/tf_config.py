"""Parses TF_CONFIG, by which TensorFlow's own cluster managers (Vertex AI, TFJob, Azure ML) tell a process its place.

The format is that of https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.errors import ConfigError

VARIABLE = "TF_CONFIG"
# Tasks that train, in the order of their ranks.
_TRAINING = ("chief", "master", "worker")
_HELP = 'expected {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Task:
    """This process among those that train.

    Attributes:
        rank: Its rank.
        addresses: "HOST:PORT" of each, by rank.
    """

    rank: int
    addresses: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each, by rank."""
        return tuple(address.rpartition(":")[0] for address in self.addresses)

    @property
    def local(self) -> tuple[int, int]:
        """This process's number among those of its host, and how many these are."""
        own = self.hosts[self.rank]
        return self.hosts[: self.rank].count(own), self.hosts.count(own)


def find(environment: Mapping[str, str]) -> Task | None:
    """The task of this process; None if there is no cluster of several tasks, or the task only evaluates.

    Raises:
        ConfigError: If TF_CONFIG cannot be used.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        given = json.loads(text)
        cluster, task = given.get("cluster", {}), given.get("task", {})
        tasks = {kind: _addresses(cluster.get(kind, [])) for kind in (*_TRAINING, "ps")}
        kind, index = task.get("type", ""), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{VARIABLE} cannot be parsed ({error}); {_HELP}. Received {text!r}") from None
    addresses = [address for each in _TRAINING for address in tasks[each]]
    if len(addresses) <= 1 or kind == "evaluator":
        return None
    if tasks["ps"] or kind == "ps":
        raise ConfigError(f"{VARIABLE} has parameter servers, which tfdist does not use; list only workers")
    if kind not in _TRAINING or not 0 <= index < len(tasks[kind]):
        raise ConfigError(f"{VARIABLE} has no task {kind!r} with the index {index}; {_HELP}. Received {text!r}")
    return Task(addresses.index(tasks[kind][index]), tuple(addresses))


def _addresses(given: Any) -> list[str]:
    # Also a dictionary of those that a task may know.
    values = list(given.values()) if isinstance(given, dict) else list(given)
    if not all(isinstance(value, str) and value.rpartition(":")[2].isdecimal() for value in values):
        raise ValueError(f"{values!r} are not addresses")
    return values
