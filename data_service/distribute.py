"""Makes a dataset run on the workers of a data service instead of in the trainer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError

_POLICIES = {
    "off": tf.data.experimental.service.ShardingPolicy.OFF,
    "dynamic": tf.data.experimental.service.ShardingPolicy.DYNAMIC,
}


def distribute(dataset: Any, service: str, sharding: str = "dynamic", job_name: str | None = None) -> Any:
    """Runs a dataset on the workers of a data service.

    You need it where preprocessing, not the training step, takes the time. What stands behind it, such as
    `prefetch`, runs in the trainer.

    Args:
        dataset: A `tf.data.Dataset` that can be serialised: no `py_function`, no generator.
        service: "HOST:PORT" of the dispatcher.
        sharding: "dynamic": the workers share the elements, each is delivered exactly once while no worker dies, at
            most once otherwise. "off": every worker delivers all elements.
        job_name: Trainers that give the same name share one pass over the data; None gives each trainer its own.

    Returns:
        A `tf.data.Dataset` of the same element type.

    Raises:
        ConfigError: If an argument cannot be honoured.

    Example:

    ```python
    dataset = tfdist.data_service.distribute(dataset, "dispatcher:5050", job_name="train").prefetch(2)
    ```
    """
    if sharding not in _POLICIES:
        raise ConfigError(f"sharding must be one of {', '.join(_POLICIES)}; received {sharding!r}.")
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigError(f"dataset must be a tf.data.Dataset; received {type(dataset)}.")
    return dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=_POLICIES[sharding], service=f"grpc://{service}", job_name=job_name
        )
    )
