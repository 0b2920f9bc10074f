"""Amazon SageMaker: the hosts of a training job, by the variables of its containers. Pure; asks no AWS."""

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
    """A slot for each GPU, one where there is none; None outside of a job.

    Raises:
        ConfigError: For values that cannot be read, and on every host but the first: all of them run the same command,
            and one is to start the ranks.
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
        raise ConfigError(f"{HERE}={here} is none of {HOSTS}={text}")
    if here != names[0]:
        raise ConfigError(
            f"this is {here}, and tfdistrun is to run on {names[0]} alone, the first of {HOSTS}={text}; the others run "
            "sshd meanwhile"
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
        raise ConfigError(f'{HOSTS}={text}: expected names as ["algo-1", "algo-2"]')
    return names
