"""A rank's shard of a dataset that can be resharded mid-epoch, keeping its order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

from tfdist.input import pipeline
from tfdist.world import runtime

_as_written: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert
_parts: weakref.WeakSet[Any] = weakref.WeakSet()
# How many numbers of rows are dealt at once, and rows looked up: a call of a function costs more than it does.
_CHUNK, _ROWS = 1024, 32


def register(part: Any) -> None:
    """Adds a part to those that `deal_all` reshards."""
    _parts.add(part)


class ElasticPart:
    """This rank's shard of n: every n-th element of a dataset, starting at some element.

    The sharding is stored in variables, which an iterator reads as it runs: change it only between iterators. Of
    `from_tensor_slices` and `range` only the rows of this rank are read, and the last maps run only for them.

    Args:
        whole: The dataset, the same on all ranks, with a known number of elements.
        is_even: Whether all ranks get as many elements, and an incomplete last round is dropped; else nothing is.

    Attributes:
        elements: The number of elements.
        is_even: As the argument.
        dataset: The shard.
    """

    def __init__(self, whole: tf.data.Dataset, is_even: bool = True) -> None:
        self.elements, self.is_even = int(whole.cardinality()), is_even
        self._start, self._stop, self._rank, self._size = (tf.Variable(0, dtype=tf.int64) for _ in range(4))
        self.deal()
        # The state of an iterator is saved and restored; the variables are not part of it, and shall not be.
        options = tf.data.Options()
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        below, maps = pipeline.below_maps(whole)
        rows = pipeline.by_number(below)
        if rows is not None:
            numbers, look_up = rows
            chunks = numbers.batch(_CHUNK).enumerate().with_options(options)
            mine = chunks.map(_as_written(self._mine_of)).unbatch()
            mine = mine.batch(_ROWS).map(_as_written(look_up)).unbatch()
            self.dataset = pipeline.mapped(mine, maps).with_options(whole.options())
        else:
            numbered = whole.enumerate().with_options(options)
            is_mine = _as_written(lambda number, element: self._is_mine(number))
            self.dataset = numbered.filter(is_mine).map(_as_written(lambda number, element: element))
        setattr(self.dataset, pipeline.ELASTIC_MARK, self)
        register(self)

    def deal(self, start: int = 0, unit: int = 1) -> int:
        """Assigns the elements from `start` on to the current ranks.

        Args:
            start: Index of the first element to assign.
            unit: Elements that each rank takes per step; an incomplete last round of steps is dropped if `is_even`.

        Returns:
            The number of steps of each rank that all of them have.
        """
        steps = max(0, self.elements - start) // (runtime.size() * unit)
        self._start.assign(start)
        self._stop.assign(start + steps * runtime.size() * unit if self.is_even else self.elements)
        self._rank.assign(runtime.rank() % runtime.size())  # a process that has yet to join others is alone
        self._size.assign(runtime.size())
        return steps

    def round_size(self, unit: int) -> int:
        """Elements of all ranks in a step, if each takes `unit`."""
        return unit * runtime.size()

    def _is_mine(self, number: tf.Tensor) -> tf.Tensor:
        place = number - self._start
        return (place >= 0) & (number < self._stop) & (place % self._size == self._rank)

    def _mine_of(self, chunk: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return rows[self._is_mine(chunk * _CHUNK + tf.range(tf.size(rows, tf.int64)))]


def deal_all() -> None:
    """Reshards all parts of this process from their beginning."""
    for part in list(_parts):
        part.deal()


def any_global() -> bool:
    """Whether data sharded with `global_batch` is in use somewhere in this process."""
    return any(hasattr(part, "global_batch") for part in list(_parts))


def order_of(iterator: Any) -> Any:
    """The state of an iterator before its first element: it determines the order of the epoch."""
    return gen_dataset_ops.serialize_iterator(
        iterator._iterator_resource, external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value
    )


def put_in_order(iterator: Any, order: Any) -> None:
    """Makes a new iterator of the same dataset follow the order that `order_of` returned."""
    gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, order)
