"""What the ranks that live do when one is lost."""

import pytest
import tensorflow as tf

from tfdist import config, errors
from tfdist.elastic import survival
from tfdist.elastic.framework import of_tensorflow
from tfdist.input import part
from tfdist.world import runtime

LOSS = errors.PeerLostError("rank 1 lost rank 0.")


@pytest.fixture
def world(monkeypatch):
    """Rank and size, which change."""
    place = {"rank": 1, "size": 3}
    monkeypatch.setattr(runtime, "rank", lambda: place["rank"])
    monkeypatch.setattr(runtime, "size", lambda: place["size"])
    monkeypatch.setattr(runtime, "renew", lambda: place.update(rank=0, size=2))
    return place


def test_data_are_dealt_out_anew(world, monkeypatch, caplog):
    monkeypatch.setattr(config, "is_elastic", lambda: True)
    mine = part.ElasticPart(tf.data.Dataset.range(12))
    assert list(mine.dataset.as_numpy_iterator()) == [1, 4, 7, 10]
    survival.go_on(LOSS)
    of_tensorflow().begin_anew()
    assert list(mine.dataset.as_numpy_iterator()) == [0, 2, 4, 6, 8, 10]
    assert "continuing with 2 of 3 ranks; this one was rank 1 and is now rank 0. rank 1 lost rank 0." in caplog.text


def test_a_job_that_is_not_elastic_ends(world, monkeypatch):
    monkeypatch.setattr(config, "is_elastic", lambda: False)
    with pytest.raises(errors.PeerLostError, match="not started with tfdistrun --elastic"):
        survival.go_on(LOSS)
    assert world == {"rank": 1, "size": 3}
