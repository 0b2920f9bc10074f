"""Horovod's base classes of data loaders, for scripts that derive from them: `horovod.data`.

New scripts read data with `tf.data`, which prefetches by itself.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

_logger = logging.getLogger("tfdist")
# How often each side looks whether the pass has been closed.
_LOOK_SECONDS = 0.1


class BaseDataLoader:
    """Batches for training; a subclass has `__len__`, the number of batches, and `_iterate`, which yields them.

    Example:

    ```python
    class Rows(BaseDataLoader):
        def __len__(self):
            return 10

        def _iterate(self):
            yield from (numpy.full(8, number) for number in range(10))

    for batch in Rows():
        ...
    ```
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} needs a method __len__ that returns the number of batches")

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} needs a method _iterate that yields batches")

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """What training gets of a batch."""
        return batch


class _End(NamedTuple):
    """The last thing in a queue: an error of `_iterate`, or None."""

    error: BaseException | None


class AsyncDataLoaderMixin:
    """Reads the batches of a `BaseDataLoader` in a thread, ahead of training; it comes first among the base classes.

    Each pass over the loader has a thread and a queue of its own. An error in `_iterate` is raised in the pass.

    Args:
        async_loader_queue_size: Most batches to read ahead; 0 reads none ahead and has no thread.
        debug_data_loader: Whether each pass logs how many batches it has read.
        *args: Of the other base class.
        **kwargs: Of the other base class.

    Example:

    ```python
    class AsyncRows(AsyncDataLoaderMixin, Rows):
        pass

    loader = AsyncRows(async_loader_queue_size=4)
    ```
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._passes: list[_Pass] = []
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the passes that are under way where they are, and their threads."""
        for each in self._passes:
            each.close()

    def __iter__(self) -> Iterator[Any]:
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            yield from map(loader._process_batch, loader._iterate())
            return
        reading = _Pass(loader._iterate(), self.async_loader_queue_size)
        self._passes.append(reading)
        count = 0
        try:
            for batch in reading:
                count += 1
                yield loader._process_batch(batch)
        finally:
            reading.close()
            self._passes.remove(reading)
            if self.debug_data_loader:
                _logger.warning("%s: %d batches, %d ahead", type(self).__name__, count, self.async_loader_queue_size)


class _Pass:
    """One pass over the batches: a thread that puts them in a queue. Closed, both sides end within `_LOOK_SECONDS`."""

    def __init__(self, batches: Iterator[Any], size: int) -> None:
        self._batches = batches
        self._queue: queue.Queue[Any] = queue.Queue(size)
        self._is_closed = threading.Event()
        threading.Thread(target=self._read, daemon=True, name="data loader").start()

    def __iter__(self) -> Iterator[Any]:
        while not self._is_closed.is_set():
            try:
                batch = self._queue.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(batch, _End):
                if batch.error is not None:
                    raise batch.error
                return
            yield batch

    def close(self) -> None:
        self._is_closed.set()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for batch in self._batches:
                self._put(batch)
                if self._is_closed.is_set():
                    return
        except BaseException as raised:  # noqa: BLE001 -- raised again where the batches are used
            error = raised
        self._put(_End(error))

    def _put(self, item: Any) -> None:
        while not self._is_closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_LOOK_SECONDS)
                return
