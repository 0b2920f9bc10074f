"""What ends the process of a worker: SIGTERM twice, or once where it drains by a request already."""

import threading
from types import SimpleNamespace

import pytest

from tfdist.data_service.process.node import ENDED, LOST, Node


class Held:
    """Plays a worker that holds elements which nobody fetches, so that its drain takes all its time."""

    address = "127.0.0.1:7000"
    service = "127.0.0.1:7000"

    def __init__(self, by_request):
        self.by_request = by_request
        self.drains, self.stopped = threading.Event(), threading.Event()

    def wait_for_request_to_drain(self, timeout_s):
        return self.by_request

    def drain(self, timeout_s):
        self.drains.set()
        self.stopped.wait(timeout_s)
        return "" if self.stopped.is_set() else "time is over"

    def stop(self):
        self.stopped.set()


@pytest.fixture
def begin():
    """Runs a node in a thread; its status and its reports appear in what is returned."""
    begun = []

    def start(by_request, drain_timeout_s):
        worker, reports = Held(by_request), []
        node = Node("worker", {"drain_timeout_s": drain_timeout_s}, reports.append)
        node._make = lambda: worker
        made = SimpleNamespace(node=node, worker=worker, reports=reports, status=None)
        made.thread = threading.Thread(target=lambda: setattr(made, "status", node.run()))
        made.thread.start()
        begun.append(made)
        return made

    yield start
    for made in begun:
        made.worker.stop()
        made.thread.join(20)


LEFT = {"left": "told to end before it had drained"}


@pytest.mark.parametrize("by_request", [False, True])
def test_a_drain_by_request_counts_as_the_first_sigterm(begin, by_request, wait_until):
    made = begin(by_request, 60)
    wait_until(lambda: made.reports)
    if not by_request:
        made.node.terminate()
    assert made.worker.drains.wait(20)
    assert made.reports[1:] == [{"draining": "127.0.0.1:7000"}]
    made.node.terminate()
    made.thread.join(20)
    assert made.status == ENDED and made.reports[2:] == [LEFT]


def test_a_drain_has_an_end(begin):
    made = begin(True, 0.01)
    made.thread.join(20)
    assert made.status == LOST and made.reports[2:] == [{"left": "time is over"}]
