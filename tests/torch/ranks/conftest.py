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
