"""Gives each rank its shard of a dataset or of arrays. Moves no data between ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.input import full_batches, global_part, mark, outline, pipeline, shuffle_warning
from tfdist.input.global_part import GlobalPart
from tfdist.input.part import ElasticPart
from tfdist.ops import object as object_ops
from tfdist.world import lone_training, runtime
from tfdist.world.session import session

_POLICIES = ("auto", "file", "data", "off")
_logger = logging.getLogger("tfdist")
_as_written: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert


def shard(
    dataset: Any,
    policy: str = "auto",
    remainder: str = "drop",
    global_batch: int | None = None,
    max_local_batch: int | None = None,
) -> Any:
    """Returns this rank's shard of a dataset or of arrays.

    Use it once in a script that trains on several ranks, around the data for `fit`, or for `evaluate` with
    `callbacks=[DataParallel()]`, and `remainder="join"` for the metrics of all samples. Rank r of n gets the
    elements r, r + n, r + 2n, ...: if the elements are batches, each rank's batch keeps the size set in the script, and
    the global batch is n times as large. Unless `remainder` says otherwise, all ranks get the same number of elements,
    so no rank waits for another at the end of an epoch. In a world of one that is not elastic the dataset is returned
    unchanged. It calls `tfdist.init()` if the script has not.

    The order of the data must be the same on all ranks: give `.shuffle` a seed, call `keras.utils.set_random_seed`
    before making the pipeline, or shard before shuffling. If the orders differ, rank 0 prints a warning that names the
    line. Iterating over a shuffled pipeline on one rank only also advances its order: inspect the data on all ranks or
    on none. Seeds also make a new process read the same order again, which resuming mid-epoch depends on: it draws the
    batches already trained on and drops them.

    Adapt layers that learn from data (`Normalization`, `TextVectorization` and others) before sharding, to the whole
    dataset: otherwise each rank would learn something different. `DataParallel` compares those of the model. Use the
    same seed on all ranks: `DataParallel` gives each rank its own dropout masks and augmentation.

    Every rank runs the steps before `shard`, so put it before an expensive `.map`, and `.batch` and `.prefetch` after
    it: `tfdist.shard(paths.shuffle(1000, seed=1)).map(decode).batch(32)`.

    Args:
        dataset: A `tf.data.Dataset`, finite or not, of batches or of single samples; or a numpy array, a tensor or
            a pandas table, or a tuple, list or dict of them with the same number of rows: rank r gets the rows r,
            r + n, r + 2n, ... in the same types.
        policy: "data" shards by element. "auto" is "data". "file" shards by the files that the pipeline reads, so that
            each rank reads only its own; because files differ in length it needs remainder="join", or an endless
            dataset (`.repeat()` with `steps_per_epoch`) of batches of equal size, and at least one file per rank. "off"
            returns the dataset unchanged on every rank.
        remainder: What happens if the elements do not divide evenly. "drop" drops the last, incomplete round, and
            before that the short last batch of each epoch, which is recognised by `.batch` or `.padded_batch` in the
            pipeline. "pad" loses no sample: it completes the last round with the first elements of the epoch, which
            then count twice; a short last batch stays. "join" uses every sample once: some ranks get one element more
            than others, and the last batch may be short. `DataParallel` then weights the ranks by their samples in each
            step, so that the gradient is the mean over all samples of the global batch, makes finished ranks wait for
            the others, and gives them the state of the last one. That works in each `fit` that trains on what this
            returns, or on a tf.data pipeline built on it. Data derived through a generator, a file or NumPy is not
            recognised: ranks have equal weight there, and unequal numbers of batches are an error. End a custom
            training loop with `tfdist.broadcast_variables(variables, root_rank=tfdist.join())`; ranks have equal weight
            there too. A dataset that reads from a data service needs a `job_name` in `distribute`, and "join" unless it
            is endless: the ranks share each pass, and each gets what it requests.
        global_batch: Samples N of all ranks in a step, which makes training independent of the number of ranks; None
            leaves the batch to you. `dataset` then has single samples, and what this returns is batched already: in
            step k, rank r of n gets the samples k*N + r*N//n to k*N + (r+1)*N//n - 1 of the order as one batch.
            `DataParallel` weights the ranks by their samples, does not multiply the learning rate by n, and starts a
            warm-up near 0. A last, incomplete global batch is dropped. Rows of arrays come in the same order in every
            epoch: shard `from_tensor_slices(...).shuffle(...)` where `fit` on arrays would shuffle them. Needs policy
            "auto" or "data", remainder "drop" and at least n samples per step. Only map, prefetch, take, skip and
            repeat may follow. Put an expensive `.map` last before `shard`: it runs only for the samples of this rank,
            and not for those skipped when training resumes.
        max_local_batch: Most samples that go through the model at once, with `global_batch`; None is any number. `fit`
            with `DataParallel` takes a step over a larger local batch in parts, and makes one update from the mean of
            their gradients: the same steps in less memory, on few ranks or after ranks were lost. Any other reader of a
            larger local batch gets an error.

    Returns:
        The same kind of data, with this rank's elements; with `global_batch`, a `tf.data.Dataset` of batches of shape
        (None, ...). If the number of elements is known, so is that of the shard, except in an elastic job.

    Raises:
        ConfigError: If an argument is invalid, if there are fewer elements than ranks or no full global batch, if the
            data has been sharded already, or if the ranks passed different arguments or data of different length.

    Example:

    ```python
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10_000, seed=1).batch(32)
    model.fit(tfdist.shard(dataset), epochs=5, callbacks=[tfdist.callbacks.DataParallel()])
    ```

    The same steps on any number of ranks:

    ```python
    paths = tf.data.Dataset.from_tensor_slices((files, labels)).shuffle(len(files), seed=1)
    dataset = tfdist.shard(paths.map(decode, num_parallel_calls=8), global_batch=256).prefetch(2)
    model.fit(dataset, epochs=5, callbacks=[tfdist.callbacks.DataParallel()])
    ```
    """
    is_dataset = _check_arguments(dataset, policy, remainder, global_batch)
    _check_whole(dataset, policy)
    limit = _check_max_local_batch(max_local_batch, global_batch)
    rank, size = _world()
    if global_batch is not None:
        arguments = {"policy": policy, "remainder": remainder, "max_local_batch": limit}
        return _shard_global_batches(dataset, int(global_batch), arguments)
    service = pipeline.service_of(dataset) if is_dataset else None
    elastic = is_dataset and service is None and _is_resharded(policy, remainder)
    # Even a single rank can be killed and restarted in the middle of an epoch.
    if policy == "off" or (size == 1 and not elastic):
        return dataset
    if service is not None:
        _check_shared(service, policy, remainder)
        described = _Description("dataset", None, [], own_shards=pipeline.own_shards(dataset))
        _compare({"policy": policy, "remainder": remainder}, described)
    lone_training.watch(mark.is_part)
    if service is not None:  # which deals out its elements
        part = dataset.with_options(tf.data.Options())
    elif policy == "file":
        part = _shard_files(dataset, rank, size, remainder)
    else:
        described = _describe_dataset(dataset) if is_dataset else _describe_arrays(dataset)
        _compare({"policy": policy, "remainder": remainder}, described)
        deal = shard_elements if is_dataset else shard_rows
        part = _elastic_part(dataset, rank, size, remainder) if elastic else deal(dataset, rank, size, remainder)
    return mark.put(part, *_labels(dataset, size, policy, remainder))


def _labels(dataset: Any, size: int, policy: str, remainder: str) -> list[str]:
    """What marks a shard."""
    is_dealt_out = isinstance(dataset, tf.data.Dataset) and pipeline.service_of(dataset) is not None
    if remainder != "drop" or policy == "file" or is_dealt_out or _divides(dataset, size):
        return [remainder]
    return [remainder, mark.LEAVES_OUT]


def _divides(dataset: Any, size: int) -> bool:
    """Whether a shard that drops what does not fill a round has nothing to drop, as far as is known."""
    if not isinstance(dataset, tf.data.Dataset):
        return _check_arrays(dataset) % size == 0
    batches, full = int(dataset.cardinality()), full_batches.count(dataset)
    return batches == full and (batches == tf.data.INFINITE_CARDINALITY or (batches >= 0 and batches % size == 0))


def _world() -> tuple[int, int]:
    """This rank and the number of ranks, after `init` if the script has not called it."""
    if not runtime.is_initialized():
        runtime.init()
    if runtime.size() > 1:
        shuffle_warning.hide()
    return runtime.rank(), runtime.size()


def _is_resharded(policy: str, remainder: str) -> bool:
    """Whether the remaining elements can be resharded when ranks are lost."""
    return policy != "file" and remainder in ("drop", "join") and config.is_elastic()


def _check_arguments(dataset: Any, policy: str, remainder: str, global_batch: Any) -> bool:
    """Rejects invalid arguments; returns whether the data is a `tf.data.Dataset`."""
    _check_choice("policy", policy, _POLICIES)
    _check_choice("remainder", remainder, mark.REMAINDERS)
    if global_batch is not None:
        _check_global_batch(dataset, global_batch, policy, remainder)
    if policy == "off" and remainder != "drop":
        raise ConfigError(
            f'policy="off" leaves the dataset unchanged, so remainder={remainder!r} has no effect. Omit it.'
        )
    if isinstance(dataset, tf.data.Dataset):
        return True
    _check_arrays(dataset)
    if policy == "file":
        raise ConfigError('policy="file" needs a tf.data.Dataset that reads files; received arrays. Use "data".')
    return False


def _check_whole(data: Any, policy: str) -> None:
    """Rejects what `shard` has returned."""
    if policy != "off" and mark.is_part(data):
        raise ConfigError(
            "tfdist.shard received data that it has sharded already, so each rank would train on a part of its part "
            "and the job leave out the rest. Shard once, around the data for fit or evaluate; remove the other call."
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def _check_max_local_batch(max_local_batch: Any, global_batch: Any) -> int | None:
    """Returns it as a number of Python's, or None."""
    if max_local_batch is not None and not _is_count(max_local_batch):
        raise ConfigError(
            f"tfdist.shard: max_local_batch must be a whole number of samples, 1 or more; received {max_local_batch!r}."
        )
    if max_local_batch is not None and global_batch is None:
        raise ConfigError(
            f"max_local_batch={max_local_batch} splits each rank's share of a global batch, so it needs global_batch; "
            f"received None. Without it batches are yours: omit max_local_batch and write .batch({max_local_batch})."
        )
    return None if max_local_batch is None else int(max_local_batch)


def _check_global_batch(dataset: Any, global_batch: Any, policy: str, remainder: str) -> None:
    """Rejects what does not work with `global_batch`."""
    if not _is_count(global_batch):
        raise ConfigError(
            "tfdist.shard: global_batch must be a whole number of samples of all ranks together, 1 or more; received "
            f"{global_batch!r}."
        )
    if policy in ("file", "off"):
        raise ConfigError(
            f"global_batch={global_batch} makes each rank take its share of every global batch, so policy must be "
            f'"auto" or "data"; received {policy!r}. Omit policy.'
        )
    if remainder != "drop":
        raise ConfigError(
            f"global_batch={global_batch} drops a last, incomplete global batch, so that all steps have as many "
            f'samples and none counts twice; remainder must be "drop", received {remainder!r}. Omit remainder.'
        )
    if not isinstance(dataset, tf.data.Dataset):
        return
    if pipeline.service_of(dataset) is not None:
        raise ConfigError(
            f"global_batch={global_batch} needs the same order of samples on every rank, and ranks get what they "
            "request from a data service. Omit global_batch, or read without the service."
        )
    batching = pipeline.batching(dataset)
    if batching is not None:
        raise ConfigError(
            f"global_batch={global_batch} needs single samples, and makes the batches itself; received batches of "
            f"{batching.batch_size}. Remove .batch({batching.batch_size}). If each of them is one sample, such as a "
            "sequence, append .flat_map(lambda *sample: tf.data.Dataset.from_tensors(sample))."
        )


def _shard_global_batches(dataset: Any, global_batch: int, arguments: dict[str, Any]) -> tf.data.Dataset:
    """This rank's share of every global batch. The ranks agree before any of them raises an error."""
    is_dataset = isinstance(dataset, tf.data.Dataset)
    if runtime.size() > 1:
        described = _describe_dataset(dataset) if is_dataset else _describe_arrays(dataset)
        _compare({**arguments, "global_batch": global_batch}, described)
    rows = int(dataset.cardinality()) if is_dataset else _check_arrays(dataset)
    if 0 <= rows < global_batch:
        raise ConfigError(
            f"tfdist.shard found {rows} samples, which is no full global batch of {global_batch}. Provide more data, "
            "or choose a smaller global_batch."
        )
    lone_training.watch(mark.is_part)
    limit = arguments["max_local_batch"]
    if is_dataset:
        made = GlobalPart(dataset, global_batch, config.is_elastic(), max_local_batch=limit)
    else:
        made = global_part.of_arrays(dataset, rows, global_batch, config.is_elastic(), limit)
    complete = rows == tf.data.INFINITE_CARDINALITY or (rows >= 0 and rows % global_batch == 0)
    return mark.put(made.dataset, "drop", *([] if complete else [mark.LEAVES_OUT]))


def _check_shared(service: Any, policy: str, remainder: str) -> None:
    """Rejects arguments that do not work with a dataset that reads from a data service."""
    if not service.shared:
        raise ConfigError(
            "every rank would read all of the data from the data service, in its own order. Pass the same job_name "
            "to `distribute` on all ranks, so that they share each pass."
        )
    if policy == "file" or not (service.endless or remainder == "join"):
        raise ConfigError(
            "ranks that share a pass of a data service get what they request, not equal numbers of batches. Make the "
            "dataset endless with .repeat() before `distribute` and pass steps_per_epoch to `fit`, or use "
            f"remainder='join'. Received policy={policy!r}, remainder={remainder!r}."
        )


def shard_elements(dataset: tf.data.Dataset, rank: int, size: int, remainder: str = "drop") -> tf.data.Dataset:
    """Returns the shard of one rank in a world of `size`, without communication. Scripts call `shard`.

    Args:
        dataset: As for `shard`.
        rank: The rank whose shard to return.
        size: Number of ranks.
        remainder: "drop", "pad" or "join".

    Raises:
        ConfigError: If the dataset has fewer elements than needed.
    """
    if remainder == "drop":
        dataset = full_batches.of(dataset)
    elements = int(dataset.cardinality())
    needed = 1 if remainder == "pad" else size
    if 0 <= elements < needed:
        raise ConfigError(_too_few(elements, "full batches or samples" if remainder == "drop" else "elements", needed))
    if elements == tf.data.INFINITE_CARDINALITY or remainder == "join":
        return dataset.shard(size, rank)
    if elements == tf.data.UNKNOWN_CARDINALITY:
        return _complete_rounds(dataset, rank, size) if remainder == "drop" else _padded_rounds(dataset, rank, size)
    rounds, rest = divmod(elements, size)
    if rest and remainder == "pad":
        return _padded_rounds(dataset, rank, size).apply(tf.data.experimental.assert_cardinality(rounds + 1))
    return dataset.take(rounds * size).shard(size, rank)


def _elastic_part(dataset: tf.data.Dataset, rank: int, size: int, remainder: str) -> tf.data.Dataset:
    """The shard of a rank in a job that may lose ranks: if the length is known, the data can be resharded."""
    is_even = remainder == "drop"
    whole = full_batches.of(dataset) if is_even else dataset
    if int(whole.cardinality()) < size:
        return shard_elements(dataset, rank, size, remainder)  # unknown, endless or an error
    return ElasticPart(whole, is_even).dataset


def shard_rows(arrays: Any, rank: int, size: int, remainder: str = "drop") -> Any:
    """Returns the rows of one rank in a world of `size`, without communication. Scripts call `shard`.

    Args:
        arrays: As for `shard`.
        rank: The rank whose rows to return.
        size: Number of ranks.
        remainder: "drop", "pad" or "join".

    Raises:
        ConfigError: If there are fewer rows than needed.
    """
    rows = _check_arrays(arrays)
    needed = 1 if remainder == "pad" else size
    if rows < needed:
        raise ConfigError(_too_few(rows, "rows", needed))
    if remainder != "pad" or rows % size == 0:
        end = rows if remainder == "join" else rows // size * size
        part = slice(rank, end, size)
        return tf.nest.map_structure(lambda array: outline.rows_of(array)[part], arrays)
    order = np.arange(rank, -(-rows // size) * size, size) % rows
    return tf.nest.map_structure(lambda array: outline.gather(array, order), arrays)


def _shard_files(dataset: tf.data.Dataset, rank: int, size: int, remainder: str) -> tf.data.Dataset:
    """The shard by files. The ranks agree before any of them raises an error, so that none is left waiting."""
    problem = _why_not_by_file(dataset) if remainder != "join" else ""
    part = dataset
    if not problem:
        try:
            part = pipeline.shard_files(dataset, size, rank)
            if not any(True for _ in part.take(1)):
                problem = f"there are fewer files than ranks ({size})"
        except tf.errors.NotFoundError:
            problem = "the pipeline does not read files by a tf.data reader such as tf.data.TFRecordDataset"
        except tf.errors.InvalidArgumentError as error:
            problem = error.message.split("}} ")[-1].split(" [Op:")[0]
    names = [outline.of_elements(origin.take(100_000)) for origin in pipeline.origins(dataset, through_files=True)]
    described = _Description("dataset", None, names, problem=problem, own_shards=pipeline.own_shards(dataset))
    _compare({"policy": "file", "remainder": remainder}, described)
    return part


def _why_not_by_file(dataset: tf.data.Dataset) -> str:
    if int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY and not pipeline.repeats_forever(dataset):
        return (
            "files differ in length, but the ranks must take the same number of steps: end the dataset with "
            '.repeat() and pass steps_per_epoch to fit, or shard with remainder="join"'
        )
    if full_batches.may_be_short(dataset):
        return "the last batch of a file may be short: use .batch(..., drop_remainder=True)"
    return ""


def _complete_rounds(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """One element of each complete group of `size`: for datasets of unknown length."""
    rounds = _rounds(dataset, size, drop_remainder=True)
    return rounds.flat_map(_as_written(lambda elements: elements.skip(rank).take(1)))


def _padded_rounds(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """One element of each group of `size`, the last group completed with the first elements.

    These are kept as serialized tensors and not read again: a second pass would be shuffled differently.
    """
    spec = dataset.element_spec
    parts = tf.nest.flatten(spec, expand_composites=True)

    @_as_written
    def dump(*element: Any) -> tf.Tensor:
        values = tf.nest.flatten(element, expand_composites=True)
        return tf.stack([tf.io.serialize_tensor(value) for value in values])

    @_as_written
    def parse(texts: tf.Tensor) -> Any:
        values = [
            tf.ensure_shape(tf.io.parse_tensor(text, part.dtype), part.shape)
            for text, part in zip(tf.unstack(texts, len(parts)), parts, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, values, expand_composites=True)

    @_as_written
    def pick(first: tf.Tensor, elements: tf.data.Dataset) -> tuple[tf.Tensor, tf.data.Dataset]:
        first = tf.cond(
            tf.shape(first)[0] > 0, lambda: first, lambda: elements.map(dump).batch(size).get_single_element()
        )
        padding = tf.data.Dataset.from_tensor_slices(first).repeat().map(parse)
        return first, elements.concatenate(padding).skip(rank).take(1)

    rounds = _rounds(dataset, size, drop_remainder=False)
    picked = rounds.scan(tf.zeros([0, len(parts)], tf.string), pick)
    return picked.flat_map(_as_written(lambda elements: elements))


def _rounds(dataset: tf.data.Dataset, size: int, drop_remainder: bool) -> tf.data.Dataset:
    """A dataset of datasets of `size` elements each."""
    is_tuple = isinstance(dataset.element_spec, tuple)

    @_as_written
    def join(*parts: Any) -> tf.data.Dataset:
        return tf.data.Dataset.zip(parts if is_tuple else parts[0])

    return dataset.window(size, drop_remainder=drop_remainder).map(join)


@dataclass(frozen=True)
class _Description:
    """What a rank sends the others about its data, so that they notice differences."""

    kind: str
    length: int | None
    origins: list[str]
    shuffles: Sequence[pipeline.Shuffle] = ()
    ordered: bool = True
    problem: str = ""
    own_shards: Sequence[tuple[int, int]] = ()


def _describe_dataset(dataset: tf.data.Dataset) -> _Description:
    origins = [outline.of_elements(origin.take(1)) for origin in pipeline.origins(dataset)]
    length = int(dataset.cardinality())
    shuffles, own_shards = pipeline.shuffles(dataset), pipeline.own_shards(dataset)
    return _Description("dataset", length, origins, shuffles, pipeline.is_ordered(dataset), own_shards=own_shards)


def _describe_arrays(arrays: Any) -> _Description:
    rows = _check_arrays(arrays)
    return _Description("arrays", rows, [outline.of_array(array) for array in tf.nest.flatten(arrays)])


def _compare(arguments: dict[str, Any], described: _Description) -> None:
    """Raises the same error on every rank if the ranks cannot train together; warns if their orders differ."""
    called = session.collectives
    everything = object_ops.allgather_object((arguments, asdict(described)), name="tfdist.shard")
    session.collectives = called  # a process that is alone may leave it out
    told = [description for _, description in everything]
    for name in arguments:
        _require_same(name, [others[name] for others, _ in everything])
    _require_same("data", [description["kind"] for description in told])
    _require_same("number of elements or rows", [description["length"] for description in told])
    size = len(told)
    # On some ranks alone it may be another split, as for validation.
    if size > 1 and all((size, rank) in description["own_shards"] for rank, description in enumerate(told)):
        raise ConfigError(
            f"the pipeline has a .shard({size}, rank) of its own, so with tfdist.shard each rank would train on "
            "a part of its part and the job leave out the rest. Remove .shard: tfdist.shard selects each rank's part."
        )
    problems = [description["problem"] for description in told if description["problem"]]
    if problems:
        raise ConfigError(f'policy="file" is not possible: {problems[0]}. Use policy="data".')
    warning = _order_problem(told) if runtime.rank() == 0 else ""
    if warning:
        _logger.warning("tfdist.shard: %s", warning)


def _require_same(name: str, values: list[Any]) -> None:
    if any(value != values[0] for value in values):
        by_rank = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
        raise ConfigError(
            f"tfdist.shard received a different {name} on different ranks ({by_rank}). Every rank must pass the "
            "same, complete data; tfdist.shard selects its shard."
        )


def _order_problem(told: list[dict[str, Any]]) -> str:
    """What is wrong with the order of the data, the consequence, and which line to change; empty if nothing is."""
    meaning = "so in every epoch some samples are used twice and others never"
    if told[0]["kind"] == "arrays":
        if any(description["origins"] != told[0]["origins"] for description in told):
            return (
                f"the arrays differ between the ranks, {meaning}. If the data was shuffled or split without a seed, "
                "as in train_test_split(x, y), write train_test_split(x, y, random_state=1)."
            )
        return ""
    by_rank = [description["shuffles"] for description in told]
    for position, shuffle in enumerate(by_rank[0]):
        lack = _lack_of_seed([shuffles[position]["seeds"] for shuffles in by_rank if len(shuffles) > position])
        if lack:
            text = f".shuffle({shuffle['buffer_size']}"
            return f"the ranks shuffle the data in different orders, {meaning}. {lack.format(shuffle=text)}"
    if not all(description["ordered"] for description in told):
        return f"deterministic=False lets the order of the data vary, {meaning}. Remove it before tfdist.shard."
    if any(description["origins"] != told[0]["origins"] for description in told):
        return (
            f"the first elements read from the source differ between the ranks, {meaning}. Make every rank read the "
            "same data in the same order: sort file names, and seed everything random."
        )
    return ""


def _lack_of_seed(by_rank: list[tuple[int, int]]) -> str:
    """Why a shuffle differs between the ranks, given its (global, own) seeds on each; empty if it does not."""
    if by_rank[0] == (0, 0):
        return "The pipeline has {shuffle}) without a seed: write {shuffle}, seed=1), or tfdist.shard before .shuffle."
    if any(seeds[0] != by_rank[0][0] for seeds in by_rank):
        return (
            "keras.utils.set_random_seed or tf.random.set_seed was called with different seeds on the ranks, on "
            "which {shuffle}) depends: set the same seed on all ranks before making the pipeline."
        )
    if any(seeds != by_rank[0] for seeds in by_rank):
        return "{shuffle}) has a different seed on each rank: write {shuffle}, seed=1)."
    return ""


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if hasattr(value, "shape") or isinstance(value, (list, tuple, dict)):
        raise ConfigError(
            "tfdist.shard expects all arrays as one argument, so that they are sharded together; received "
            f"{type(value).__name__} as {name}. Write tfdist.shard((X, Y)), with double parentheses."
        )
    if value not in choices:
        raise ConfigError(f"tfdist.shard: {name} must be one of {', '.join(map(repr, choices))}; received {value!r}.")


def _check_arrays(arrays: Any) -> int:
    """The number of rows that all arrays have.

    Raises:
        ConfigError: If anything is not an array, has no rows, or has a different number of them.
    """
    leaves = tf.nest.flatten(arrays)
    for leaf in leaves:
        if isinstance(leaf, tf.SparseTensor) or not hasattr(leaf, "shape") or not hasattr(leaf, "__getitem__"):
            raise ConfigError(
                "tfdist.shard expects a tf.data.Dataset, or numpy arrays, tensors or pandas tables, or a tuple, list "
                f"or dict of them; received {type(leaf).__name__}. For a generator, use "
                "tf.data.Dataset.from_generator."
            )
        if len(leaf.shape) == 0:
            raise ConfigError("tfdist.shard needs arrays with rows; received one without dimensions.")
    rows = [int(leaf.shape[0]) for leaf in leaves]
    if not rows or min(rows) != max(rows):
        raise ConfigError(f"tfdist.shard needs arrays with the same number of rows; received {rows} rows.")
    return rows[0]


def _too_few(count: int, what: str, needed: int) -> str:
    return (
        f"tfdist.shard found {count} {what}; {needed} are needed so that every rank gets one. Start fewer ranks, "
        'choose a smaller batch, or provide more data; with remainder="pad" the ranks share what there is.'
    )
