"""Amazon SageMaker: the hosts of a training job, from the variables of its containers. Does not contact AWS."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.cluster.allocation import Allocation

HOSTS = "SM_HOSTS"
GPUS = "SM_NUM_GPUS"
HERE = "SM_CURRENT_HOST"


def find(environment: Mapping[str, str]) -> Allocation | None:
    """One slot per GPU, or one on hosts without GPUs; None outside a job.

    Raises:
        ConfigError: If a value cannot be parsed, and on every host except the first: all hosts run the same command,
            but only one may start the ranks.
    """
    text = environment.get(HOSTS, "")
    if not text:
        return None
    names = _names(text)
    gpus = environment.get(GPUS) or "0"
    if not (gpus.isascii() and gpus.isdigit()):
        raise ConfigError(f"{GPUS}={gpus} is not a number of GPUs; expected 0 or more")
    here = environment.get(HERE) or names[0]
    if here not in names:
        raise ConfigError(f"{HERE}={here} is not one of {HOSTS}={text}")
    if here != names[0]:
        raise ConfigError(
            f"this is {here}, but tfdistrun must run only on {names[0]}, the first of {HOSTS}={text}; run sshd on the "
            "other hosts"
        )
    slots = str(max(1, int(gpus)))
    source = f"{HOSTS} and {GPUS}"
    return Allocation("SageMaker", host.listed(((name, slots) for name in names), source), source)


def _names(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f'{HOSTS}={text}: expected names such as ["algo-1", "algo-2"]')
    return names
