"""What a `tf.data` pipeline is made of: the only user of tf.data's private names. Shards files, never elements.

A dataset knows its inputs (`_inputs()`) and the arguments it was made with. If a name is missing in some release of
TensorFlow, or the pipeline came from a saved graph, the answer is "unknown" and the caller manages without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute

# What `distribute` of tfdist.data_service puts on the dataset it returns; that of `measure_wait` names no service.
SERVICE_MARK = "_tfdist_watch"
# What `shard` puts on a part whose deal can change.
ELASTIC_MARK = "_tfdist_part"
_BATCHES = {"BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset", "RebatchDataset"}
_MAPS = {"MapDataset", "ParallelMapDataset"}
# What `measure_wait` of tfdist.data_service returns: a dataset that only counts.
_MEASURED = "MeasuredDataset"
_SAME_ELEMENTS = {"PrefetchDataset", "OptionsDataset", "CacheDataset", "AssertCardinalityDataset", _MEASURED}
_SOME_ELEMENTS = {"TakeDataset", "SkipDataset", "ShardDataset", "FilterDataset", "TakeWhileDataset"}
# Below one of these the elements are others: a flat map may open files or call a generator.
_NEW_ELEMENTS = {
    "FlatMapDataset",
    "InterleaveDataset",
    "ParallelInterleaveDataset",
    "GroupByWindowDataset",
    "GroupByReducerDataset",
}


@dataclass(frozen=True)
class Batching:
    """The `.batch(...)` of a pipeline and what comes after it.

    Attributes:
        batch_size: Rows of a full batch as made by `.batch`.
        rows: Cardinality before batching, or tf.data's codes for infinite and unknown.
        drops_remainder: Whether `.batch` itself drops a short last batch.
        mapped: Whether a function runs on the batches, which may change their size.
        shuffled: Whether the batches themselves are shuffled.
        partial: Whether some batches are dropped after batching, so that their number does not follow from `rows`.
        repeated: Whether the batches come again in further epochs.
    """

    batch_size: int
    rows: int
    drops_remainder: bool
    mapped: bool
    shuffled: bool
    partial: bool
    repeated: bool

    @property
    def all_full(self) -> bool:
        """Whether it is certain that no batch is short."""
        if self.drops_remainder or self.rows == tf.data.INFINITE_CARDINALITY:
            return True
        return self.rows >= 0 and self.rows % self.batch_size == 0

    def full_batches(self, batches: int) -> int:
        """How many of the pipeline's `batches` are full, or tf.data's code for unknown or infinite."""
        if batches == tf.data.INFINITE_CARDINALITY:
            return batches
        if batches < 0 or self.rows <= 0 or self.partial:
            return tf.data.UNKNOWN_CARDINALITY
        an_epoch = -(-self.rows // self.batch_size)
        return batches // an_epoch * (self.rows // self.batch_size)


@dataclass(frozen=True)
class Map:
    """One `.map(...)`: its function as the script wrote it, and its number of parallel calls, None for one by one."""

    function: Callable[..., Any]
    parallel_calls: Any


@dataclass(frozen=True)
class Shuffle:
    """One `.shuffle(...)`: its buffer size in elements, and the two seeds; both are 0 without a seed."""

    buffer_size: int
    seeds: tuple[int, int]


def batching(dataset: tf.data.Dataset) -> Batching | None:
    """Finds the `.batch(...)` that made the elements of a pipeline; None if they are not recognised as batches."""
    mapped = shuffled = partial = repeated = False
    node = dataset
    while True:
        kind = _kind(node)
        inputs = _inputs(node)
        if kind in _BATCHES:
            return _batching_of(node, mapped, shuffled, partial, repeated)
        if kind == "ZipDataset":
            parts = {batching(part) for part in inputs}
            return parts.pop() if len(parts) == 1 and not (mapped or shuffled or partial) else None
        if kind in _MAPS:
            mapped = True
        elif kind == "ShuffleDataset":
            shuffled = True
        elif kind in _SOME_ELEMENTS:
            partial = True
        elif kind == "RepeatDataset":
            repeated = True
        elif kind not in _SAME_ELEMENTS:
            return None
        if len(inputs) != 1:
            return None
        node = inputs[0]


def _batching_of(node: Any, mapped: bool, shuffled: bool, partial: bool, repeated: bool) -> Batching | None:
    drops = bool(tf.get_static_value(node._drop_remainder))
    if _kind(node) != "RebatchDataset":
        rows = int(_inputs(node)[0].cardinality())
        return Batching(int(tf.get_static_value(node._batch_size)), rows, drops, mapped, shuffled, partial, repeated)
    sizes = tf.get_static_value(node._batch_sizes)
    if sizes.ndim > 0:
        return None
    return Batching(int(sizes), tf.data.UNKNOWN_CARDINALITY, drops, mapped, shuffled, partial, repeated)


def below_maps_of_batches(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, list[Any]]:
    """The pipeline before the maps of its batches, and the steps from there on, for `again`. It begins later if a step
    among them cannot be taken again on fewer batches.
    """
    node, steps, count = dataset, list[Any](), tf.data.UNKNOWN_CARDINALITY
    while (found := batching(node)) is not None and found.mapped:
        kind = _kind(node)
        repeats = kind == "RepeatDataset" and count < 0  # a count of all epochs cannot be asserted of one
        if kind == "AssertCardinalityDataset":
            count = int(node.cardinality())
        elif kind in ("PrefetchDataset", "OptionsDataset") or repeats or _map_of(node):
            steps.insert(0, node)
        else:
            break
        node = _inputs(node)[0]
    return node if count < 0 else node.apply(tf.data.experimental.assert_cardinality(count)), steps


def again(steps: Sequence[Any], dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset after the same steps as another. Options are left out."""
    for step in steps:
        dataset = _again(step, dataset)
    return dataset


def below_maps(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, list[Map]]:
    """The pipeline below its last maps, and these in their order; prefetching among them is left out.

    It begins where elements can be batched: they are dense tensors whose shapes do not vary.
    """
    found: tuple[tf.data.Dataset, list[Map]] = (dataset, [])
    maps: list[Map] = []
    node, count = dataset, tf.data.UNKNOWN_CARDINALITY
    while True:
        kind = _kind(node)
        if kind in _MAPS:
            step = _map_of(node)
            if step is None:
                return found
            maps.insert(0, step)
        elif kind == "AssertCardinalityDataset":
            count = int(node.cardinality())
        elif kind not in ("PrefetchDataset", "OptionsDataset"):
            return found
        node = _inputs(node)[0]
        specs = tf.nest.flatten(node.element_spec)
        if maps and all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs):
            below = node if count < 0 else node.apply(tf.data.experimental.assert_cardinality(count))
            found = (below, list(maps))


def mapped(dataset: tf.data.Dataset, maps: Sequence[Map]) -> tf.data.Dataset:
    """A dataset after the maps that `below_maps` has found."""
    for each in maps:
        dataset = dataset.map(each.function, num_parallel_calls=each.parallel_calls)
    return dataset


def by_number(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Callable[[Any], Any]] | None:
    """For dense `from_tensor_slices` and `range`, shuffled with a seed or repeated or neither: a pipeline with the
    numbers of the rows in the same order, and a function that returns the rows with the given numbers. Else None.
    """
    node, steps = dataset, list[Any]()
    while (kind := _kind(node)) in {"ShuffleDataset", "RepeatDataset", *_SAME_ELEMENTS} - {"CacheDataset", _MEASURED}:
        if kind in ("ShuffleDataset", "RepeatDataset"):
            steps.insert(0, node)
        node = _inputs(node)[0]
    if kind == "RangeDataset":
        return dataset, lambda numbers: numbers
    tensors, spec = getattr(node, "_tensors", None), node.element_spec
    if kind != "TensorSliceDataset" or not tensors:
        return None
    if not all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec)):
        return None
    numbers = tf.data.Dataset.range(int(node.cardinality()))
    for step in steps:
        numbers = _again(step, numbers)
    # Without a seed, or if the global seed was another one, this would be another order, and each shard had its own.
    if shuffles(numbers) != shuffles(dataset):
        return None
    with tf.device("CPU:0"):  # where tf.data reads them
        columns = [tf.identity(each) for each in tensors]
    return numbers, lambda rows: tf.nest.pack_sequence_as(spec, [tf.gather(each, rows) for each in columns])


def _again(step: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same `.shuffle`, `.repeat`, `.prefetch` or `.map` of another dataset."""
    kind = _kind(step)
    if kind == "RepeatDataset":
        return dataset.repeat(int(tf.get_static_value(step._count)))
    if kind == "ShuffleDataset":
        (shuffle, *_) = shuffles(step)
        return dataset.shuffle(
            shuffle.buffer_size, shuffle.seeds[1], reshuffle_each_iteration=step._reshuffle_each_iteration
        )
    if kind == "PrefetchDataset":
        return dataset.prefetch(int(tf.get_static_value(step._buffer_size)))
    step = _map_of(step)
    return dataset if step is None else mapped(dataset, [step])


def _map_of(node: Any) -> Map | None:
    """What a `.map` does; None for another step, and if its function is not known."""
    function = getattr(getattr(node, "_map_func", None), "_func", None) if _kind(node) in _MAPS else None
    return None if function is None else Map(function, getattr(node, "_num_parallel_calls", None))


def shuffles(dataset: tf.data.Dataset) -> list[Shuffle]:
    """The shuffles of a pipeline, the last applied first. Shuffles in the function of an interleave are not found."""
    found = []
    for node in nodes(dataset):
        if _kind(node) == "ShuffleDataset":
            seeds = tuple(int(tf.get_static_value(seed)) for seed in (node._seed, node._seed2))
            found.append(Shuffle(int(tf.get_static_value(node._buffer_size)), (seeds[0], seeds[1])))
    return found


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Whether a shuffle of a pipeline has another order in each of its passes."""
    return any(_kind(node) == "ShuffleDataset" and node._reshuffle_each_iteration for node in nodes(dataset))


def own_shards(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
    """The number of shards and the index of each `.shard` in a pipeline."""
    steps = [node for node in nodes(dataset) if _kind(node) == "ShardDataset"]
    return [(int(tf.get_static_value(step._num_shards)), int(tf.get_static_value(step._index))) for step in steps]


def is_ordered(dataset: tf.data.Dataset) -> bool:
    """Whether parallel calls return their results in order, as they do unless `deterministic=False` is set."""
    if dataset.options().deterministic is False:
        return False
    return all(getattr(node, "_deterministic", None) != "false" for node in nodes(dataset))


def origins(dataset: tf.data.Dataset, through_files: bool = False) -> list[tf.data.Dataset]:
    """The datasets a pipeline starts from: reading a few elements is cheap, as no shuffle buffer or cache is filled.

    Args:
        dataset: The pipeline.
        through_files: Whether to continue from what is read to the names of the files it is read from.
    """
    kind = _kind(dataset)
    if kind.startswith("DataService") or _is_served(dataset):
        return []  # what is read from it is lost to training
    if kind in _NEW_ELEMENTS and not through_files and not shuffles(dataset):
        return [dataset]
    inputs = _inputs(dataset)
    if not inputs:
        return [dataset]
    return [origin for part in inputs for origin in origins(part, through_files)]


def service_of(dataset: tf.data.Dataset) -> Any:
    """What `distribute` recorded about the data service that the pipeline reads from; None if it reads from none."""
    return next((getattr(node, SERVICE_MARK) for node in nodes(dataset) if _is_served(node)), None)


def elastic_part_of(dataset: tf.data.Dataset) -> tuple[Any, int]:
    """The shard that the pipeline is built on, and how many of its elements make one of the pipeline; None and 0 if the
    elements of the pipeline do not correspond to those of the shard, one by one and in order, or have no known number,
    or ranks may have unequal numbers of them.
    """
    node, rows = dataset, 1
    while not hasattr(node, ELASTIC_MARK):
        if not _keeps_count(node):
            return None, 0
        if _kind(node) in _BATCHES:
            rows *= int(tf.get_static_value(node._batch_size))
        node = _inputs(node)[0]
    part = getattr(node, ELASTIC_MARK)
    return (part, rows) if part.elements >= 0 and part.is_even else (None, 0)


def regroups_after_part(dataset: tf.data.Dataset) -> bool:
    """Whether a step of the pipeline after a shard may change which elements, or which rows, come together."""
    if hasattr(dataset, ELASTIC_MARK):
        return False
    keeps = _kind(dataset) in _SAME_ELEMENTS | _MAPS | {"TakeDataset", "SkipDataset", "RepeatDataset"}
    behind = [part for part in _inputs(dataset) if any(hasattr(each, ELASTIC_MARK) for each in nodes(part))]
    return bool(behind) and (not keeps or any(regroups_after_part(part) for part in behind))


def step_behind_elastic_part(dataset: tf.data.Dataset) -> str:
    """The last step of a pipeline that makes `elastic_part_of` fail although there is a shard; empty if none does."""
    node = dataset
    while not hasattr(node, ELASTIC_MARK) and _keeps_count(node):
        node = _inputs(node)[0]
    if hasattr(node, ELASTIC_MARK) or not any(hasattr(each, ELASTIC_MARK) for each in nodes(node)):
        return ""
    name = _kind(node).removeprefix("Parallel").removesuffix("Dataset")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _keeps_count(node: Any) -> bool:
    """Whether the elements of a step correspond to those of the previous one, one by one or batch by batch."""
    keeping = (_BATCHES - {"RebatchDataset"}) | (_SAME_ELEMENTS - {"CacheDataset"}) | _MAPS
    return _kind(node) in keeping and len(_inputs(node)) == 1


def repeats_forever(dataset: tf.data.Dataset) -> bool:
    """Whether the pipeline ends in `.repeat()`, which tf.data does not report as infinite if its input has unknown
    length.
    """
    node = dataset
    while _kind(node) in _SAME_ELEMENTS | _MAPS | _BATCHES | {"ShuffleDataset"}:
        node = _inputs(node)[0]
    return _kind(node) == "RepeatDataset" and int(tf.get_static_value(node._count)) < 0


def shard_files(dataset: tf.data.Dataset, size: int, rank: int) -> tf.data.Dataset:
    """The pipeline with only every `size`-th of its source files, starting at index `rank`.

    Raises:
        tf.errors.NotFoundError: If the pipeline does not read files.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return distribute._AutoShardDataset(dataset.with_options(options), size, rank)


def nodes(dataset: tf.data.Dataset) -> Iterator[Any]:
    """A dataset and all its inputs. Datasets opened by a function of `.flat_map` and the like are not found."""
    yield dataset
    for part in _inputs(dataset):
        yield from nodes(part)


def _inputs(dataset: tf.data.Dataset) -> list[Any]:
    try:
        return list(dataset._inputs())
    except (AttributeError, NotImplementedError):
        return []


def _is_served(dataset: tf.data.Dataset) -> bool:
    return bool(getattr(getattr(dataset, SERVICE_MARK, None), "service", ""))


def _kind(dataset: tf.data.Dataset) -> str:
    if hasattr(dataset, SERVICE_MARK) and not _is_served(dataset):
        return _MEASURED
    return type(dataset).__name__.lstrip("_")
