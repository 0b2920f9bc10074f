"""A rank's part of every global batch, for any number of ranks. Moves no data between ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.input import part, pipeline
from tfdist.world import runtime

_as_written: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert
_UNSPLIT = (
    "only fit with tfdist.callbacks.DataParallel splits the batches of tfdist.shard(..., max_local_batch={limit}), so "
    "nothing else may read those that have more samples. Add the callback to fit, and make the model without a "
    "tf.distribute strategy; for evaluate, predict and a loop of your own, shard the data again without "
    "max_local_batch, with a smaller global_batch or batches of your own. This batch has as many samples:"
)


class GlobalPart:
    """This rank's share of n: in step k it has part r of the samples k * N to (k + 1) * N - 1, as one local batch.

    The share is stored in variables, which an iterator reads as it runs: change it only between iterators. Samples are
    chosen before the last maps of the pipeline, so these run only for the samples that this rank trains on; rows of
    `from_tensor_slices` are looked up only then, too.

    Args:
        whole: The samples, the same on all ranks; or numbers of rows, with `look_up`.
        global_batch: Samples of all ranks in a step.
        changes: Whether the number of ranks may change between iterators.
        look_up: Returns the rows with the given numbers; None if `whole` has the samples themselves.
        max_local_batch: How many samples may be handed to a reader that does not split them; None is any number.

    Attributes:
        elements: The number of global batches of an epoch, or tf.data's codes for infinite and unknown.
        global_batch: Samples of all ranks in a step.
        max_local_batch: As the argument.
        is_even: True: all ranks take part in each step.
        changes: Whether the number of ranks may change between iterators.
        dataset: The local batches.
        untold_order: Whether the samples are rows of arrays, and no `fit` has said yet that it does not shuffle them.
    """

    is_even = True
    untold_order = False

    def __init__(
        self,
        whole: tf.data.Dataset,
        global_batch: int,
        changes: bool,
        look_up: Callable[[Any], Any] | None = None,
        max_local_batch: int | None = None,
    ) -> None:
        below, maps = pipeline.below_maps(whole)
        if look_up is None:
            below, look_up = pipeline.by_number(below) or (below, None)
        batches = below.batch(global_batch, drop_remainder=True)
        self.elements, self.global_batch, self.changes = int(batches.cardinality()), global_batch, changes
        self.max_local_batch = max_local_batch
        with tf.device("CPU:0"):  # where tf.data reads them
            numbers = [tf.Variable(0, dtype=tf.int64) for _ in range(4)]
            self._is_split = tf.Variable(False)
        self._start, self._first, self._end, self._local_batch = numbers
        self.deal()
        # The state of an iterator is saved and restored; the variables are not part of it, and shall not be.
        options = tf.data.Options()
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        numbered = batches.enumerate().with_options(options).filter(_as_written(self._is_left))
        mine = numbered.map(_as_written(self._share_of))
        if look_up is not None:
            mine = mine.map(_as_written(look_up))
        if maps:
            samples = pipeline.mapped(mine.unbatch(), maps)
            mine = self._in_batches(samples) if changes else samples.batch(self._local_batch.read_value())
        self.dataset = mine.with_options(whole.options())
        # Where the number of ranks may change, `fit` sets the number of steps that are left.
        if self.elements == tf.data.INFINITE_CARDINALITY or (self.elements >= 0 and not changes):
            self.dataset = self.dataset.apply(tf.data.experimental.assert_cardinality(self.elements))
        setattr(self.dataset, pipeline.ELASTIC_MARK, self)
        part.register(self)

    def deal(self, start: int = 0, unit: int = 1) -> int:
        """Shares the global batches from `start` on among the current ranks.

        Args:
            start: Index of the first global batch.
            unit: Must be 1, since the elements are batches already.

        Returns:
            The number of steps.

        Raises:
            ConfigError: If the data was batched again, or if there are more ranks than samples in a global batch.
        """
        self.round_size(unit)
        if self.global_batch < runtime.size():
            raise ConfigError(
                f"global_batch={self.global_batch} is less than the number of ranks ({runtime.size()}), so some would "
                "have no sample in a step. Start fewer ranks, or choose a larger global_batch."
            )
        self._start.assign(start)
        first, end = (rank * self.global_batch // runtime.size() for rank in (runtime.rank(), runtime.rank() + 1))
        self._first.assign(first)
        self._end.assign(end)
        self._local_batch.assign(end - first)
        return max(0, self.elements - start)

    def narrow(self) -> None:
        """Until the next `deal` a local batch is the first sample of its global batch, for a step that is undone."""
        self._first.assign(0)
        self._end.assign(1)
        self._local_batch.assign(1)

    def split(self, is_split: bool) -> None:
        """Whether who reads this splits its batches from now on, so that they may have more than `max_local_batch`."""
        self._is_split.assign(is_split)

    def round_size(self, unit: int) -> int:
        """Elements of all ranks in a step: one global batch.

        Raises:
            ConfigError: If the data was batched again.
        """
        if unit != 1:
            raise ConfigError(batched_again(self.global_batch))
        return 1

    def _is_left(self, number: tf.Tensor, batch: Any) -> tf.Tensor:
        return number >= self._start

    def _share_of(self, number: tf.Tensor, batch: Any) -> Any:
        first, end = self._first.read_value(), self._end.read_value()
        if self.max_local_batch is not None:
            fits = self._is_split | (end - first <= self.max_local_batch)
            tf.debugging.Assert(fits, [_UNSPLIT.format(limit=self.max_local_batch), end - first])
        return tf.nest.map_structure(lambda value: rows_between(value, first, end), batch)

    def _in_batches(self, samples: tf.data.Dataset) -> tf.data.Dataset:
        """As `.batch`, of the size that is right when the iterator runs."""
        return samples.enumerate().group_by_window(
            key_func=_as_written(lambda number, sample: number // self._local_batch),
            reduce_func=_as_written(
                lambda key, window: window.map(_as_written(lambda number, sample: sample)).batch(self._local_batch)
            ),
            window_size_func=_as_written(lambda key: self._local_batch.read_value()),
        )


def batched_again(global_batch: int) -> str:
    """Why samples may not be regrouped after `shard(..., global_batch=N)`, and what to do."""
    return (
        f"the data is regrouped after tfdist.shard(..., global_batch={global_batch}), which returns each rank's share "
        "of a global batch as one batch. Remove .batch and the like after tfdist.shard; only map, prefetch, take, skip "
        "and repeat may follow. Put .shuffle, with a seed, before it."
    )


def of_arrays(
    arrays: Any, rows: int, global_batch: int, changes: bool, max_local_batch: int | None = None
) -> GlobalPart:
    """The share of arrays with this number of rows; only rows that are trained on are read."""
    with tf.device("CPU:0"):
        tensors = tf.nest.map_structure(_tensor, _without_lists(arrays))

    def look_up(places: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), tensors)

    made = GlobalPart(tf.data.Dataset.range(rows), global_batch, changes, look_up, max_local_batch)
    made.untold_order = True
    return made


def _tensor(array: Any) -> Any:
    return array if isinstance(array, tf.RaggedTensor) else tf.convert_to_tensor(array)


def _without_lists(arrays: Any) -> Any:
    """Tuples in place of lists, which tf.data would stack."""
    if isinstance(arrays, (list, tuple)):
        return tuple(_without_lists(each) for each in arrays)
    if isinstance(arrays, dict):
        return {name: _without_lists(each) for name, each in arrays.items()}
    return arrays


def rows_between(value: Any, first: tf.Tensor, end: tf.Tensor) -> Any:
    """The rows from `first` to `end` - 1 of a tensor, also of a ragged or sparse one; both are int64 scalars."""
    if not isinstance(value, tf.SparseTensor):
        return value[first:end]
    shape = value.dense_shape
    start = tf.concat([[first], tf.zeros_like(shape[1:])], axis=0)
    return tf.sparse.slice(value, start, tf.concat([[end - first], shape[1:]], axis=0))
