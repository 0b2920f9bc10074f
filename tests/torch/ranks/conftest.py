"""Of one rank: starts tfdist once, and has a barrier after each test."""

import pytest
import torch

import tfdist.torch as hvd


@pytest.fixture(scope="session", autouse=True)
def _started():
    hvd.init(process_sets="dynamic")


@pytest.fixture(autouse=True)
def _in_step(_started):
    torch.manual_seed(7 + hvd.rank())
    yield
    hvd.barrier()


@pytest.fixture
def rank():
    return hvd.rank()


@pytest.fixture
def size():
    return hvd.size()


@pytest.fixture
def own_set(rank, size):
    """The even ranks are a set, and so are the odd ones: that of this rank."""
    sets = [hvd.add_process_set(list(range(first, size, 2))) for first in range(min(size, 2))]
    yield sets[rank % 2]
    hvd.barrier()
    for each in sets:
        hvd.remove_process_set(each)
