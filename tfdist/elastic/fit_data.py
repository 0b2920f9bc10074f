"""Which data an elastic `fit` supports, and what prevents the rest. Not a callback."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.input import mark, pipeline
from tfdist.input.global_part import GlobalPart
from tfdist.input.part import ElasticPart

_FROM_ARRAYS = (
    "Write data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1), and fit "
    "tfdist.shard(data).batch(32)"
)
_FROM_ELSEWHERE = (
    "Write data = tf.data.Dataset.from_generator(..., output_signature=...), set its number of samples with "
    "data.apply(tf.data.experimental.assert_cardinality(N)), and fit tfdist.shard(data).batch(32)"
)
_BY_EPOCHS = "Remove .repeat(), and pass epochs to fit"


def part_of(dataset: Any, steps_per_epoch: int | None) -> tuple[ElasticPart | GlobalPart | None, int]:
    """The shard behind the data, and its elements per batch; None and 1 for batches from a data service, which is
    endless and gives each rank what it requests.

    Raises:
        ConfigError: If the rest of an epoch cannot be resharded; says why, and what to do instead.
    """
    is_dataset = isinstance(dataset, tf.data.Dataset)
    service = pipeline.service_of(dataset) if is_dataset else None
    if service is not None:
        _check_service(service, steps_per_epoch)
        return None, 1
    part, unit = pipeline.elastic_part_of(dataset) if is_dataset else (None, 0)
    if part is not None and steps_per_epoch is None:
        part.round_size(unit)  # refuses batches of batches
        return part, unit
    if is_dataset and steps_per_epoch is not None:
        endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        raise errors.ConfigError(
            f"DataParallel(elastic=True) does not support steps_per_epoch (received {steps_per_epoch}): the number "
            f"of steps depends on the surviving ranks. Remove it{', and .repeat() with it' if endless else ''}; it "
            "is only for endless data from a data service."
        )
    raise errors.ConfigError(
        "DataParallel(elastic=True) must reshard the rest of an epoch when a rank is lost, which is impossible here: "
        f"{_obstacle(dataset) if is_dataset else _obstacle_of_other(dataset)}."
    )


def need_elastic_validation(data: Any) -> None:
    """Rejects validation data of which a part would be left out after a loss, or counted twice after a join.

    Args:
        data: What `fit` gets as `validation_data`.

    Raises:
        ConfigError: If it comes from a shard that stays as it is.
    """
    if not mark.is_fixed(data):
        return
    kind = "a dataset of unknown length, by file or padded" if mark.datasets_in(data) else "arrays"
    raise errors.ConfigError(
        "DataParallel(elastic=True) must share out the validation data again when ranks are lost or join, which is "
        f'impossible here: tfdist.shard got {kind}. Use validation_data=tfdist.shard(data, remainder="join") of a '
        "tf.data.Dataset of known length, such as from_tensor_slices((x, y)).batch(32), or the whole data on each rank."
    )


def _check_service(service: Any, steps_per_epoch: int | None) -> None:
    lacks = {
        ".repeat() before distribute": service.endless,
        "a job_name in distribute": service.shared,
        "steps_per_epoch in fit, the steps of an epoch with the initial number of ranks": (steps_per_epoch is not None),
    }
    missing = [what for what, is_there in lacks.items() if not is_there]
    if missing:
        raise errors.ConfigError(
            "DataParallel(elastic=True) needs endless data from a data service, with epochs counted in steps. "
            f"Missing here: {'; '.join(missing)}."
        )


def _obstacle(dataset: tf.data.Dataset) -> str:
    step = pipeline.step_behind_elastic_part(dataset)
    if step == "repeat":
        return f".repeat comes after tfdist.shard. {_BY_EPOCHS}"
    if step:
        seeded = ", with a seed" if step == "shuffle" else ""
        return (
            f".{step} comes after tfdist.shard, where only map, batch and prefetch are supported. Put it before "
            f"tfdist.shard{seeded}"
        )
    of_other_shard = (
        'the dataset does not come from tfdist.shard with policy "auto" or "data" and remainder "drop", the '
        "defaults. Fit tfdist.shard(dataset)"
    )
    if mark.of(dataset) - {"drop"}:
        return of_other_shard
    length = int(dataset.cardinality())
    if length == tf.data.INFINITE_CARDINALITY:
        return f"the dataset is endless. {_BY_EPOCHS}"
    if length == tf.data.UNKNOWN_CARDINALITY:
        return (
            "the length of the dataset is unknown, as after filter, from_generator and record files. Set it before "
            "tfdist.shard: data = data.apply(tf.data.experimental.assert_cardinality(N))"
        )
    return of_other_shard


def _obstacle_of_other(data: Any) -> str:
    leaves = tf.nest.flatten(data)
    kind = type(leaves[0] if leaves else data).__name__
    if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
        return f"arrays ({kind}) are not a tf.data.Dataset. {_FROM_ARRAYS}"
    return f"{kind} is not a tf.data.Dataset, so the order and number of its samples are unknown. {_FROM_ELSEWHERE}"
