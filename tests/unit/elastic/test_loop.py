"""The training function is called again after a loss."""

import threading
import types
import weakref

import pytest

from tfdist import config, elastic, errors
from tfdist.elastic import advice, loop, survival
from tfdist.elastic.framework import Framework
from tfdist.world import runtime

LOSS = errors.PeerLostError("rank 1 lost rank 0.")


class Iterator:
    """Weak references to an object of this class are possible."""


@pytest.mark.parametrize("trouble", [LOSS, errors.HostsUpdatedInterrupt("x")])
def test_what_the_function_had_is_destroyed_in_a_thread(monkeypatch, wait_until, trouble):
    """An iterator of tf.data, which the others would wait for."""
    for module, name in ((runtime, "init"), (advice, "need_elastic_job"), (survival, "go_on")):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(config, "is_elastic", lambda: True)
    ends, calls, others = [], [], []
    trains_with = Framework(None, None, lambda error: error, lambda: others.append(len(calls)))
    state = types.SimpleNamespace(
        framework=lambda: trains_with,
        is_open=False,
        is_of_others=False,
        **dict.fromkeys(("restore", "sync", "on_reset"), lambda: None),
    )

    @elastic.run
    def train(_):
        calls.append(None)
        if len(calls) == 1:
            iterator = Iterator()
            weakref.finalize(iterator, lambda: ends.append(threading.current_thread().name))
            raise trouble
        wait_until(lambda: ends, seconds=10, what="the end of the iterator")
        return loop.is_running()

    assert train(state)
    assert ends == ["tfdist-release"] and others == [1]
