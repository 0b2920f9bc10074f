"""Horovod's base classes of data loaders."""

import threading

import pytest

from tfdist.input.data_loader import AsyncDataLoaderMixin, BaseDataLoader

LIMIT_S = 10


class Numbers(BaseDataLoader):
    def __init__(self, count, trouble=None):
        self.count, self.trouble = count, trouble
        self.read = threading.Semaphore(0)

    def __len__(self):
        return self.count

    def _iterate(self):
        for number in range(self.count):
            self.read.release()
            yield number
        if self.trouble is not None:
            raise self.trouble

    def _process_batch(self, batch):
        return 10 * batch


class AheadNumbers(AsyncDataLoaderMixin, Numbers):
    pass


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "data loader"]


@pytest.mark.parametrize("size", [0, 1, 64])
def test_each_pass_has_all_batches(size, wait_until):
    loader = AheadNumbers(size, False, 5)
    assert len(loader) == 5
    for _ in range(2):
        assert list(loader) == list(Numbers(5)) == [0, 10, 20, 30, 40]
    wait_until(lambda: not threads(), what="the end of the threads")


def test_reads_ahead_as_far_as_the_queue_goes():
    loader = AheadNumbers(3, False, 100)
    batches = iter(loader)
    assert next(batches) == 0
    for _ in range(5):  # one used, three in the queue, one in the hand of the thread
        assert loader.read.acquire(timeout=LIMIT_S)
    assert not loader.read.acquire(timeout=0.05)
    batches.close()


def test_two_passes_at_once_do_not_share_batches():
    loader = AheadNumbers(2, False, 4)
    assert list(zip(loader, loader, strict=True)) == [(0, 0), (10, 10), (20, 20), (30, 30)]


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("trouble", [KeyError("file 7"), __import__("queue").Empty()])
def test_an_error_comes_after_the_batches_before_it(size, trouble):
    batches = iter(AheadNumbers(size, False, 2, trouble))
    assert [next(batches), next(batches)] == [0, 10]
    with pytest.raises(type(trouble)):
        next(batches)


def test_a_pass_that_is_left_or_closed_has_no_thread(wait_until, caplog):
    loader = AheadNumbers(1, True, 1000)
    for batch in loader:
        if batch == 20:
            break
    wait_until(lambda: not threads(), what="the end of the thread")
    assert "AheadNumbers: 3 batches, 1 ahead" in caplog.text
    batches = iter(loader)
    next(batches)
    loader.close_async_loader()
    assert list(batches) == []
    wait_until(lambda: not threads(), what="the end of the thread")


def test_what_a_subclass_lacks_is_named():
    with pytest.raises(NotImplementedError, match="BaseDataLoader needs a method _iterate"):
        next(iter(BaseDataLoader()))
    with pytest.raises(NotImplementedError, match="BaseDataLoader needs a method __len__"):
        len(BaseDataLoader())
