"""Hands the elements of a dataset to somebody who cannot bear that the dataset fails.

TensorFlow's `Dataset.save` hangs for ever, and Ctrl-C cannot end it, if an element after the first cannot be made. So
this thread reads the dataset, and another one saves what comes through a queue, which just ends there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

# Elements may be large.
_WAITING = 4


def relay(dataset: tf.data.Dataset, consume: Callable[[tf.data.Dataset], None]) -> int:
    """Calls `consume`, in a thread, with a dataset of the same elements, which may be read once and does not fail.

    Args:
        dataset: Any finite dataset of tensors, also ragged and sparse ones.
        consume: Reads all.

    Returns:
        The number of elements.

    Raises:
        Exception: What the dataset raised, or what `consume` did; it has ended then.
    """
    parts = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    queue = tf.queue.FIFOQueue(_WAITING, [tf.bool, *(part.dtype for part in parts)])
    errors: list[BaseException] = []

    def dequeue(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        more, *values = queue.dequeue()
        return (more, *(tf.ensure_shape(value, part.shape) for value, part in zip(values, parts, strict=True)))

    def packed(_: tf.Tensor, *values: tf.Tensor) -> tf.types.experimental.TensorLike:
        return tf.nest.pack_sequence_as(dataset.element_spec, values, expand_composites=True)

    def run() -> None:
        try:
            flat = tf.data.Dataset.counter().map(dequeue).take_while(lambda more, *_: more)
            consume(flat.map(packed))
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)
            queue.close(cancel_pending_enqueues=True)

    thread, count, values = threading.Thread(target=run, name="tfdist-relay", daemon=True), 0, None
    try:
        for element in dataset:
            values = tf.nest.flatten(element, expand_composites=True)
            if not count:
                thread.start()
            queue.enqueue([True, *values])
            count += 1
    except tf.errors.CancelledError:
        if not errors:
            raise
    finally:
        if values is not None and not errors:
            queue.enqueue([False, *values])
        if count:
            thread.join()
    if errors:
        raise errors[0]
    return count
