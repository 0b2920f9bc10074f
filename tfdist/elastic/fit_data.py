"""Which data an elastic `fit` can follow, and what is in the way of the rest. Not a callback."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.input import pipeline
from tfdist.input.part import ElasticPart

_FROM_ARRAYS = (
    "Write data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1), and fit "
    "tfdist.shard(data).batch(32)"
)
_FROM_ELSEWHERE = (
    "Write data = tf.data.Dataset.from_generator(..., output_signature=...), tell how many samples it has by "
    "data.apply(tf.data.experimental.assert_cardinality(N)), and fit tfdist.shard(data).batch(32)"
)
_BY_EPOCHS = "Leave .repeat() out, and say to fit how many epochs"


def part_of(dataset: Any, steps_per_epoch: int | None) -> tuple[ElasticPart | None, int]:
    """The part that the data is dealt from, and its elements in a batch; None and 1 for batches of a data service,
    which has no end, and where each rank gets what it asks for.

    Raises:
        ConfigError: If what is left of an epoch cannot be dealt out anew; says why, and what to do instead.
    """
    is_dataset = isinstance(dataset, tf.data.Dataset)
    service = pipeline.service_of(dataset) if is_dataset else None
    if service is not None:
        _check_service(service, steps_per_epoch)
        return None, 1
    part, unit = pipeline.elastic_part_of(dataset) if is_dataset else (None, 0)
    if part is not None and steps_per_epoch is None:
        return part, unit
    if is_dataset and steps_per_epoch is not None:
        endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        raise errors.ConfigError(
            f"DataParallel(elastic=True) takes no steps_per_epoch (received {steps_per_epoch}): how many steps an "
            f"epoch has depends on the ranks that live. Leave it out{', and .repeat() with it' if endless else ''}; it "
            "is for data without an end from a data service."
        )
    raise errors.ConfigError(
        "DataParallel(elastic=True) must deal out the rest of an epoch anew when a rank is lost, and cannot here: "
        f"{_obstacle(dataset) if is_dataset else _obstacle_of_other(dataset)}."
    )


def _check_service(service: Any, steps_per_epoch: int | None) -> None:
    lacks = {
        ".repeat() before distribute": service.endless,
        "a job_name in distribute": service.shared,
        "steps_per_epoch in fit, the steps that an epoch has with the ranks that the job begins with": (
            steps_per_epoch is not None
        ),
    }
    missing = [what for what, is_there in lacks.items() if not is_there]
    if missing:
        raise errors.ConfigError(
            "DataParallel(elastic=True) reads from a data service what has no end, and counts its epochs by steps. "
            f"Missing here: {'; '.join(missing)}."
        )


def _obstacle(dataset: tf.data.Dataset) -> str:
    step = pipeline.step_behind_elastic_part(dataset)
    if step == "repeat":
        return f".repeat stands behind tfdist.shard. {_BY_EPOCHS}"
    if step:
        seeded = ", with a seed" if step == "shuffle" else ""
        return (
            f".{step} stands behind tfdist.shard, where only map, batch and prefetch keep count. Put it before "
            f"tfdist.shard{seeded}"
        )
    length = int(dataset.cardinality())
    if length == tf.data.INFINITE_CARDINALITY:
        return f"the dataset has no end. {_BY_EPOCHS}"
    if length == tf.data.UNKNOWN_CARDINALITY:
        return (
            "the length of the dataset is not known, as behind filter, from_generator and files of records. Tell it "
            "before tfdist.shard: data = data.apply(tf.data.experimental.assert_cardinality(N))"
        )
    return (
        'the dataset is not one that tfdist.shard has dealt out with policy "auto" or "data" and remainder "drop", the '
        "defaults. Fit tfdist.shard(dataset)"
    )


def _obstacle_of_other(data: Any) -> str:
    leaves = tf.nest.flatten(data)
    kind = type(leaves[0] if leaves else data).__name__
    if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
        return f"arrays ({kind}) are no tf.data.Dataset. {_FROM_ARRAYS}"
    return f"{kind} is no tf.data.Dataset, so the order and the number of its samples are not known. {_FROM_ELSEWHERE}"
